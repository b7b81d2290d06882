"""The door that every judgement goes through: one that fails is missing, whatever was thrown.

A teacher, a judge or a grader reads what a model wrote, and a model writes anything: code nested a thousand deep, texts
without end, characters that cannot be encoded. What it throws says something about one answer and must not end the
training. Only KeyboardInterrupt and SystemExit do: they are the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rlvitals.terminal import logger, visible

Q = TypeVar("Q")
J = TypeVar("J")


class Door:
    """Asks for judgements and gives back one for each question. Counts those that failed, and says the first of each
    kind.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._said: set[type[Exception]] = set()
        self.failures = 0
        """Judgements that are missing because something was thrown."""

    def judge(
        self, ask: Callable[[Sequence[Q]], Sequence[J]], questions: Sequence[Q], *, missing: Callable[[str], J]
    ) -> list[J]:
        """What `ask` says of the questions; where it throws they are asked again in halves, until only those are left
        that it throws on. Of these `missing` makes a judgement from the reason.
        """
        if not questions:
            return []
        try:
            found = list(ask(questions))
            if len(found) != len(questions):
                raise ValueError(f"{len(found)} judgements came for {len(questions)} answers")
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            if len(questions) > 1:
                half = len(questions) // 2
                return [
                    judgement
                    for part in (questions[:half], questions[half:])
                    for judgement in self.judge(ask, part, missing=missing)
                ]
            return [missing(self._note(error))]
        return found

    def judge_one(self, ask: Callable[[], J], *, missing: Callable[[str], J]) -> J:
        """The same for a single judgement."""
        (found,) = self.judge(lambda _: [ask()], [None], missing=missing)
        return found

    def _note(self, error: Exception) -> str:
        reason = _told(error)
        self.failures += 1
        if type(error) not in self._said:
            self._said.add(type(error))
            logger.warning(
                "%s failed on an answer (%s). The answer has no judgement and is left out; training goes on",
                self._who,
                reason,
            )
        return reason


def _told(error: Exception) -> str:
    """The kind of the error and a bit of its text, on one line that any terminal and file can take."""
    try:
        text = str(error)[:200]
    except Exception:  # noqa: BLE001 - its text is made of the answer as well
        text = ""
    return f"{type(error).__name__}: {visible(text)}".removesuffix(": ")
