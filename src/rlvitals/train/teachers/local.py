"""A teacher that is a model of transformers in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from rlvitals.train.models import chat_ids
from rlvitals.train.sampling import Sampling, answers_to
from rlvitals.train.teachers.base import (
    RUBRIC,
    AnswerToJudge,
    BadVerdict,
    Judgement,
    messages,
    read_object,
    read_scores,
)


class LocalTeacher:
    """Samples verdicts greedily, `batch_size` questions at a time."""

    def __init__(self, model: Any, tokenizer: Any, name: str, *, max_tokens: int = 80, batch_size: int = 16) -> None:
        self._model, self._tokenizer = model.eval(), tokenizer
        self._max_tokens, self._batch_size = max_tokens, batch_size
        self.identity = f"local {name} {RUBRIC} {max_tokens}"

    def check(self) -> None:
        """Nothing to check: the model is loaded."""

    def close(self) -> None:
        """Nothing to close."""

    def judge(self, questions: Sequence[AnswerToJudge]) -> list[Judgement]:
        found: list[Judgement] = []
        for start in range(0, len(questions), self._batch_size):
            found += self._judge(questions[start : start + self._batch_size])
        return found

    def _judge(self, questions: Sequence[AnswerToJudge]) -> list[Judgement]:
        prompts = [self._prompt(question) for question in questions]
        end = self._tokenizer.eos_token_id
        pad = end if self._tokenizer.pad_token_id is None else self._tokenizer.pad_token_id
        _, sampled = answers_to(self._model, prompts, Sampling(self._max_tokens, end, pad, temperature=0.0))
        found = []
        for prompt, tokens, counted in zip(prompts, sampled.tokens, sampled.mask, strict=True):
            kept = tokens[counted.to(torch.bool)]
            spent = Judgement(None, prompt_tokens=len(prompt), completion_tokens=len(kept))
            try:
                scores = read_scores(read_object(self._tokenizer.decode(kept, skip_special_tokens=True)))
                found.append(replace(spent, scores=scores))
            except BadVerdict as error:
                found.append(replace(spent, reason=f"no verdict: {error}", is_unread=True))
        return found

    def _prompt(self, question: AnswerToJudge) -> list[int]:
        asked = messages(question)
        if self._tokenizer.chat_template:
            return chat_ids(self._tokenizer, asked)
        ids: list[int] = self._tokenizer("".join(f"{message['content']}\n\n" for message in asked))["input_ids"]
        return ids
