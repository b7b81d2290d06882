"""A teacher behind an OpenAI-compatible address: a hosted model, vLLM, SGLang, llama.cpp, `transformers serve`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlvitals.errors import ConfigError
from rlvitals.train.teachers.base import RUBRIC, BadVerdict, Judgement, Question, messages, read_scores
from rlvitals.train.teachers.client import JudgeClient


class EndpointTeacher:
    """Asks `concurrency` questions at a time; judgements come back in the order of the questions."""

    def __init__(self, client: JudgeClient, *, concurrency: int = 8) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="rlvitals-teacher")

    @property
    def identity(self) -> str:
        return f"endpoint {self._client.address} {self._client.model} {RUBRIC}"

    def check(self) -> None:
        """Ask for something small: a wrong address, model or key is said now, not after the first batch."""
        answer = self._client.ask([{"role": "user", "content": 'Answer with the JSON object {"ok": true}.'}], _anything)
        if not answer.verdict and not answer.failure.startswith("no verdict"):
            raise ConfigError(
                f"the teacher {self._client.model!r} at {self._client.address} does not answer: {answer.failure}"
            )

    def judge(self, questions: Sequence[Question]) -> list[Judgement]:
        return list(self._threads.map(self._judge, questions))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _judge(self, question: Question) -> Judgement:
        answer = self._client.ask(messages(question), read_scores)
        return Judgement(answer.verdict, answer.failure, answer.prompt_tokens, answer.completion_tokens)


def _anything(verdict: dict[str, Any]) -> dict[str, Any]:
    if not verdict:
        raise BadVerdict("an empty object")
    return verdict
