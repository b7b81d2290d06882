"""Every judgement is asked for through a guard: one that fails is missing, whatever was raised.

A teacher, a judge or a grader reads what a model wrote, and a model writes anything: code nested a thousand deep, texts
without end, characters that cannot be encoded. What it raises concerns one answer and must not end the training.
KeyboardInterrupt and SystemExit do: they are the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rlvitals.guard import Once, guarded, words_of
from rlvitals.terminal import visible

Q = TypeVar("Q")
J = TypeVar("J")


class JudgeGuard:
    """Asks for judgements and returns one for each question. Counts those that failed, and logs the first of each
    kind.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._warn_once = Once()
        self.failures = 0
        """Judgements that are missing because something was raised."""

    def judge(
        self, ask: Callable[[Sequence[Q]], Sequence[J]], questions: Sequence[Q], *, missing: Callable[[str], J]
    ) -> list[J]:
        """What `ask` returns for the questions. Where it raises they are asked again in halves, until only those are
        left that it raises on; of these `missing` makes a judgement from the reason.
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
        reason = visible(words_of(error)[:200])  # the text is made of the answer as well
        self.failures += 1
        self._warn_once(
            f"{self._who} failed on an answer ({reason}). The answer has no judgement and is left out; "
            "training continues",
            key=type(error).__qualname__,
        )
        return reason
