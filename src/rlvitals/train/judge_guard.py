"""A guard around every judgement: if an exception is raised, that judgement is missing and training continues.

A teacher, a judge or a grader reads a model's output, which can be anything: code nested a thousand levels deep, very
long texts, characters that cannot be encoded. An exception concerns one answer and must not end the training.
KeyboardInterrupt and SystemExit still do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rlvitals.guard import Once, guarded, words_of
from rlvitals.terminal import visible

Q = TypeVar("Q")
J = TypeVar("J")


class JudgeGuard:
    """Requests judgements and returns one for each question. Logs the first failure of each kind."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._warn_once = Once()

    def judge(
        self, ask: Callable[[Sequence[Q]], Sequence[J]], questions: Sequence[Q], *, missing: Callable[[str], J]
    ) -> list[J]:
        """The results of `ask` for the questions. If it raises, the questions are tried again in halves, until only the
        failing ones remain. For these, `missing` creates a judgement from the reason.
        """
        if not questions:
            return []
        errors: list[Exception] = []
        with guarded(errors.append):
            found = list(ask(questions))
            if len(found) == len(questions):
                return found
            raise ValueError(f"{len(found)} judgements came for {len(questions)} answers")
        if len(questions) == 1:
            return [missing(self._note(errors[0]))]
        half = len(questions) // 2
        return [
            judgement
            for part in (questions[:half], questions[half:])
            for judgement in self.judge(ask, part, missing=missing)
        ]

    def judge_one(self, ask: Callable[[], J], *, missing: Callable[[str], J]) -> J:
        """The same for a single judgement."""
        (found,) = self.judge(lambda _: [ask()], [None], missing=missing)
        return found

    def _note(self, error: Exception) -> str:
        reason = visible(words_of(error)[:200])  # the message may contain parts of the answer
        self._warn_once(
            f"{self._who} failed on an answer ({reason}). The answer has no judgement and is left out; "
            "training continues",
            key=type(error).__qualname__,
        )
        return reason
