"""An answer that was judged is not judged again: a cache in front of any teacher, keyed by what judgements depend on.

The key is a hash of the teacher's identity, the task and the answer. Failed judgements are not kept: a teacher that
raises, or returns something else than scores from 0 to 1, has given none (`judge_guard`). With a file, what was paid
for survives the process; `forget_after` takes back what an abandoned attempt added, so that a resumed run counts the
same hits as one that was never broken.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvitals.store.files import append_line, replace_file
from rlvitals.train.judge_guard import JudgeGuard
from rlvitals.train.teachers.base import WEIGHTS, Judgement, Question, Teacher, read_scores

MAX_ENTRIES = 200_000


@dataclass
class Bill:
    """What judging has cost so far. Cached judgements cost nothing."""

    asked: int = 0
    cached: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def minus(self, earlier: Bill) -> Bill:
        """What came since then."""
        return Bill(**{name: count - getattr(earlier, name) for name, count in vars(self).items()})


class CachedTeacher:
    """Asks the teacher for what it has not seen, once for each different answer."""

    def __init__(self, teacher: Teacher, file: Path | None = None, *, size: int = MAX_ENTRIES) -> None:
        self._teacher, self._file, self._size = teacher, file, size
        self._door = JudgeGuard("the teacher")
        self._known: dict[str, Judgement] = {}  # in the order they came: the oldest goes first
        self.step = 0
        """The trainer's step, kept with each entry."""
        self.bill = Bill()
        if file is not None and file.exists():
            for entry in _entries(file):
                self._keep(entry["key"], Judgement(entry["scores"], entry["reason"]))

    @property
    def identity(self) -> str:
        return self._teacher.identity

    def check(self) -> None:
        self._teacher.check()

    def close(self) -> None:
        self._teacher.close()

    def judge(self, questions: Sequence[Question]) -> list[Judgement]:
        keys = [self._key(question) for question in questions]
        new = {key: question for key, question in zip(keys, questions, strict=True) if key not in self._known}
        fresh = dict(zip(new, self._ask(list(new.values())), strict=True)) if new else {}
        found, told = [], set()
        for key in keys:
            first = key in fresh and key not in told
            judgement = fresh[key] if key in fresh else self._known[key]
            found.append(judgement if first or judgement.scores is None else judgement.from_cache())
            told.add(key)
        self._count(found, fresh.values())
        self._store({key: judgement for key, judgement in fresh.items() if judgement.scores is not None})
        return found

    def judge_again(self, questions: Sequence[Question]) -> list[Judgement]:
        """Ask the teacher itself, whatever is known: for its agreement with itself. It is paid for like any other."""
        found = self._ask(questions)
        self._count(found, found)
        return found

    def _ask(self, questions: Sequence[Question]) -> list[Judgement]:
        return self._door.judge(self._checked, questions, missing=lambda reason: Judgement(None, reason))

    def _checked(self, questions: Sequence[Question]) -> list[Judgement]:
        found = self._teacher.judge(questions)
        for judgement in found:
            if judgement.scores is not None:
                read_scores(judgement.scores)
        return found

    def forget_after(self, step: int) -> None:
        """Drop what was judged after that step, in memory and in the file."""
        if self._file is None or not self._file.exists():
            return
        kept = [entry for entry in _entries(self._file) if entry["step"] <= step]
        replace_file(self._file, "".join(json.dumps(entry) + "\n" for entry in kept).encode())
        self._known.clear()
        for entry in kept:
            self._keep(entry["key"], Judgement(entry["scores"], entry["reason"]))

    def _key(self, question: Question) -> str:
        parts = (self.identity, question.task.prompt, question.task.entry_point, question.task.tests, question.answer)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def _count(self, found: Sequence[Judgement], paid: Any) -> None:
        self.bill.asked += len(found)
        self.bill.cached += sum(judgement.is_cached for judgement in found)
        self.bill.failed += sum(judgement.scores is None for judgement in found)
        for judgement in paid:
            self.bill.prompt_tokens += judgement.prompt_tokens
            self.bill.completion_tokens += judgement.completion_tokens

    def _keep(self, key: str, judgement: Judgement) -> None:
        self._known[key] = judgement
        if len(self._known) > self._size:
            del self._known[next(iter(self._known))]

    def _store(self, fresh: dict[str, Judgement]) -> None:
        lines = []
        for key, judgement in fresh.items():
            self._keep(key, judgement)
            entry = {"step": self.step, "key": key, "scores": judgement.scores, "reason": judgement.reason}
            lines.append(json.dumps(entry) + "\n")
        if self._file is not None and lines:
            append_line(self._file, "".join(lines).encode())


def _entries(file: Path) -> list[dict[str, Any]]:
    """The whole lines of the file; a torn or foreign one is left out."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
            if entry["scores"].keys() == WEIGHTS.keys() and isinstance(entry["step"], int) and entry["key"]:
                found.append({"reason": "", **entry})
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found
