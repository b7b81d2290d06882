"""A teacher behind an OpenAI-compatible address (a hosted model, vLLM, SGLang, llama.cpp, `transformers serve`), and
its client, which returns a checked JSON verdict or the reason of the failure.

    client = JudgeClient("http://localhost:8000/v1", "my-judge", key_variable="OPENAI_API_KEY")
    answer = client.ask(messages, read=my_check)         # my_check(dict) -> anything, raises BadVerdict
    answer.verdict, answer.failure, answer.prompt_tokens

`ask` does not raise: a judge that cannot be reached, is too slow or replies with something else is a failure. A request
has one time limit, from connecting to the last byte. Failures that may be temporary (429, 5xx, a broken connection, a
time-out, a reply without a verdict) are retried with growing pauses, or after the time in `Retry-After`; a rate limit
pauses all threads. The tokens in `usage` are counted for every try.

The key is read from the environment only. It never appears in a log, an error or a file, is not sent to another address
(redirects are not followed), and is removed from the parts of a reply that are kept. Proxies are not used.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from rlvitals.errors import ConfigError
from rlvitals.guard import guarded, words_of
from rlvitals.terminal import logger
from rlvitals.train.teachers.base import (
    RUBRIC,
    AnswerToJudge,
    BadVerdict,
    Judgement,
    messages,
    read_object,
    read_scores,
)
from rlvitals.webhook import LOOPBACK, may_pass, retry_after

T = TypeVar("T")

MAX_ANSWER_BYTES = 2**20
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
MAX_QUOTED = 2000
"""Characters of an unreadable reply that are quoted in the next try."""


class EndpointTeacher:
    """Asks `concurrency` questions at a time."""

    def __init__(self, client: JudgeClient, *, concurrency: int = 8) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="rlvitals-teacher")
        self.identity = f"endpoint {client.address} {client.model} {RUBRIC}"

    def check(self) -> None:
        """Send a small request, so that a wrong address, model or key raises before training."""
        answer = self._client.ask([{"role": "user", "content": 'Answer with the JSON object {"ok": true}.'}], dict)
        if answer.verdict is None and not answer.failure.startswith("no verdict"):
            raise ConfigError(
                f"the teacher {self._client.model!r} at {self._client.address} does not answer: {answer.failure}"
            )

    def judge(self, questions: Sequence[AnswerToJudge]) -> list[Judgement]:
        return list(self._threads.map(self._judge, questions))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _judge(self, question: AnswerToJudge) -> Judgement:
        answer = self._client.ask(messages(question), read_scores)
        tokens = answer.prompt_tokens, answer.completion_tokens
        return Judgement(answer.verdict, answer.failure, *tokens, is_unread=answer.is_unread)


@dataclass(frozen=True, slots=True)
class EndpointAnswer(Generic[T]):
    """The result of one question, after all tries."""

    verdict: T | None
    """None if there is none; see `failure`."""
    failure: str = ""
    is_unread: bool = False
    """Whether the last try got a reply without a readable verdict."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Of all tries, as the server counted them."""
    tries: int = 0
    unaccounted: int = 0
    """Number of replies without `usage`, whose tokens are unknown."""

    def plus_usage(self, reply: Any) -> EndpointAnswer[T]:
        usage = reply.get("usage") if isinstance(reply, dict) else None
        counts = usage if isinstance(usage, dict) else {}
        prompt, completion = counts.get("prompt_tokens"), counts.get("completion_tokens")
        if type(prompt) is not int or type(completion) is not int or min(prompt, completion) < 0:
            return replace(self, unaccounted=self.unaccounted + 1)
        prompt, completion = self.prompt_tokens + prompt, self.completion_tokens + completion
        return replace(self, prompt_tokens=prompt, completion_tokens=completion)


@dataclass(eq=False)
class _Failed(Exception):
    """One try failed."""

    why: str
    wait: float | None = None
    """Seconds that the server asked to wait."""
    is_final: bool = False
    """Whether another try would not help."""
    is_unread: bool = False
    """Whether there was a reply without a verdict."""
    reply_text: str = ""


class JudgeClient:
    """Sends questions to one model at one address. Threads may share it."""

    def __init__(
        self, base_url: str, model: str, *, key_variable: str = "OPENAI_API_KEY", seconds: float = 60.0, tries: int = 4,
        requests_per_minute: float | None = None, max_tokens: int = 200, json_mode: bool = False,
    ) -> None:  # fmt: skip
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("the teacher's address must look like https://host/v1")
        if parts.username or parts.password or parts.query:
            raise ConfigError(f"the teacher's address contains a secret; put the key into the variable {key_variable}")
        self._host, self._is_safe = parts.hostname, parts.scheme == "https"
        self._port, self._path = parts.port, parts.path.rstrip("/") + "/chat/completions"
        self.model, self.address = model, f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._key = os.environ.get(key_variable, "").strip()
        if not self._is_safe and self._key and self._host not in LOOPBACK:
            logger.warning("the key in %s is sent to %s without encryption", key_variable, self._host)
        self._seconds, self._tries = seconds, tries
        self._body = {"model": model, "temperature": 0, "max_tokens": max_tokens}
        if json_mode:
            self._body["response_format"] = {"type": "json_object"}
        self._gate = _Gate(60.0 / requests_per_minute if requests_per_minute else 0.0)
        self._jitter = random.Random()  # noqa: S311 - separate, so that the training's random state does not change

    def ask(self, messages: Sequence[Mapping[str, str]], read: Callable[[dict[str, Any]], T]) -> EndpointAnswer[T]:
        """Ask until `read` accepts a verdict, or until no try is left."""
        spent: EndpointAnswer[T] = EndpointAnswer(None)
        errors: list[Exception] = []
        asked = list(messages)
        for turn in range(1, self._tries + 1):
            spent = replace(spent, tries=turn)
            with guarded(errors.append):
                self._gate.pass_through()
                reply = self._post({**self._body, "messages": asked})
                spent = spent.plus_usage(reply)
                return replace(spent, verdict=_verdict(reply, read), failure="", is_unread=False)
            error = errors.pop().with_traceback(None)  # its frames hold the reply
            # `read` may raise anything; the same reply again would not help.
            failed = error if isinstance(error, _Failed) else _Failed(words_of(error), is_final=True)
            line = " ".join(failed.why.split())
            if self._key:  # the server may have quoted it; replaced before the cut, which could leave half of it
                line = line.replace(self._key, "***")
            spent = replace(spent, failure=line[:300], is_unread=failed.is_unread)
            if failed.is_final:
                break
            if failed.reply_text:  # at temperature 0 the same messages would get the same reply
                asked = [*messages, *_objection(failed.reply_text, line[:300])]
            if failed.wait is not None:
                self._gate.close_for(min(failed.wait, LONGEST_WAIT))
            elif turn < self._tries:
                time.sleep(min(LONGEST_WAIT, FIRST_WAIT * 2 ** (turn - 1)) * self._jitter.uniform(0.5, 1.0))
        return spent

    def _post(self, body: Mapping[str, Any]) -> Any:
        kind = http.client.HTTPSConnection if self._is_safe else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._seconds)
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        too_late = f"no answer within {self._seconds:g} s"
        with contextlib.closing(connection), _Deadline(self._seconds) as deadline:
            try:
                connection.connect()
                deadline.sock = connection.sock
                connection.request("POST", self._path, json.dumps(body).encode(), headers)
                with connection.getresponse() as response:
                    content = response.read(MAX_ANSWER_BYTES + 1)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if deadline.is_over or isinstance(error, TimeoutError):
                    raise _Failed(too_late) from None
                raise _Failed(f"no connection: {type(error).__name__}: {error}") from None
        if deadline.is_over:
            raise _Failed(too_late)
        if response.status != http.client.OK:
            why = f"HTTP {response.status}: {content[:2000].decode('utf-8', 'replace')}"
            wait = retry_after(response.headers.get("Retry-After"))
            # 409: two requests that met; model servers ask for another try.
            may_retry = may_pass(response.status) or response.status == http.client.CONFLICT
            raise _Failed(why, wait=wait, is_final=not may_retry)
        if len(content) > MAX_ANSWER_BYTES:
            raise _Failed(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise _Failed("the answer is not JSON") from None


class _Gate:
    """Spaces requests by an interval, and stops all of them while a rate limit applies."""

    def __init__(self, interval: float) -> None:
        self._interval, self._opens, self._lock = interval, 0.0, threading.Lock()

    def pass_through(self) -> None:
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._opens)
            self._opens = turn + self._interval
        time.sleep(turn - now)

    def close_for(self, seconds: float) -> None:
        with self._lock:
            self._opens = max(self._opens, time.monotonic() + seconds)


class _Deadline:
    """Shuts a connection down after a time limit. A socket's own time-out restarts with every byte, so a server that
    sends slowly would never reach it.
    """

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self.sock: socket.socket | None = None
        """Kept here because the connection drops its socket after reading the headers."""
        self._timer = threading.Timer(seconds, self._strike)
        self._timer.daemon = True

    def _strike(self) -> None:
        self.is_over = True
        if self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def _verdict(reply: Any, read: Callable[[dict[str, Any]], T]) -> T:
    try:
        text = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        text = None
    try:
        if not isinstance(text, str):
            raise BadVerdict("the reply has no choices[0].message.content")
        return read(read_object(text))
    except BadVerdict as error:
        reply_text = text if isinstance(text, str) else ""
        raise _Failed(f"no verdict: {error}", is_unread=True, reply_text=reply_text) from None


def _objection(reply_text: str, why: str) -> list[dict[str, str]]:
    """Messages that the next try adds: the reply without a verdict, and what is wrong with it."""
    wish = f"This cannot be read ({why}). Answer the question with one JSON object and nothing else."
    return [{"role": "assistant", "content": reply_text[:MAX_QUOTED]}, {"role": "user", "content": wish}]
