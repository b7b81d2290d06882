"""An answer that was judged is not judged again: a cache in front of any teacher, keyed by what judgements depend on.

The key is a hash of the teacher's identity, the task and the answer. Failed judgements are not kept: a teacher that
raises, or returns something else than scores from 0 to 1, has given none (`judge_guard`). With a file, what was paid
for survives the process; `forget_after` takes back what an abandoned attempt added, so that a resumed run counts the
same hits as one that was never broken.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlvitals.store.files import append_line, replace_file
from rlvitals.train.judge_guard import JudgeGuard
from rlvitals.train.teachers.base import WEIGHTS, AnswerToJudge, Judgement, Teacher, read_scores

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

    def add(self, found: Sequence[Judgement], paid: Iterable[Judgement]) -> None:
        self.asked += len(found)
        self.cached += sum(judgement.is_cached for judgement in found)
        self.failed += sum(judgement.scores is None for judgement in found)
        for judgement in paid:
            self.prompt_tokens += judgement.prompt_tokens
            self.completion_tokens += judgement.completion_tokens


class CachedTeacher:
    """Asks the teacher for what it has not seen, once for each different answer."""

    def __init__(self, teacher: Teacher, file: Path | None = None, *, size: int = MAX_ENTRIES) -> None:
        self._teacher, self._file, self._size = teacher, file, size
        self.check, self.close = teacher.check, teacher.close
        self._guard = JudgeGuard("the teacher")
        self._known: dict[str, Judgement] = {}  # in the order they came: the oldest goes first
        self.step = 0
        """The trainer's step, kept with each entry."""
        self.bill = Bill()
        for entry in _entries(file):
            self._keep(entry)

    @property
    def identity(self) -> str:
        return self._teacher.identity

    def judge(self, questions: Sequence[AnswerToJudge]) -> list[Judgement]:
        keys = [self._key(question) for question in questions]
        new = {key: question for key, question in zip(keys, questions, strict=True) if key not in self._known}
        fresh = dict(zip(new, self._ask(list(new.values())), strict=True))
        found, seen = [], set()
        for key in keys:
            judgement = fresh[key] if key in fresh else self._known[key]
            if judgement.scores is not None and (key not in fresh or key in seen):
                judgement = replace(judgement, prompt_tokens=0, completion_tokens=0, is_cached=True)
            found.append(judgement)
            seen.add(key)
        self.bill.add(found, fresh.values())
        entries = [
            {"step": self.step, "key": key, "scores": judgement.scores, "reason": judgement.reason}
            for key, judgement in fresh.items()
            if judgement.scores is not None
        ]
        for entry in entries:
            self._keep(entry)
        if self._file is not None and entries:
            append_line(self._file, _lines(entries))
        return found

    def judge_again(self, questions: Sequence[AnswerToJudge]) -> list[Judgement]:
        """Ask the teacher itself, whatever is known: for its agreement with itself. It is paid for like any other."""
        found = self._ask(questions)
        self.bill.add(found, found)
        return found

    def forget_after(self, step: int) -> None:
        """Drop what was judged after that step, in memory and in the file."""
        if self._file is None or not self._file.exists():
            return
        kept = [entry for entry in _entries(self._file) if entry["step"] <= step]
        replace_file(self._file, _lines(kept))
        self._known.clear()
        for entry in kept:
            self._keep(entry)

    def _ask(self, questions: Sequence[AnswerToJudge]) -> list[Judgement]:
        return self._guard.judge(self._checked, questions, missing=lambda reason: Judgement(None, reason))

    def _checked(self, questions: Sequence[AnswerToJudge]) -> list[Judgement]:
        found = self._teacher.judge(questions)
        for judgement in found:
            if judgement.scores is not None:
                read_scores(judgement.scores)
        return found

    def _key(self, question: AnswerToJudge) -> str:
        parts = (self.identity, question.task.prompt, question.task.entry_point, question.task.tests, question.answer)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def _keep(self, entry: dict[str, Any]) -> None:
        self._known[entry["key"]] = Judgement(entry["scores"], entry["reason"])
        if len(self._known) > self._size:
            del self._known[next(iter(self._known))]


def _lines(entries: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


def _entries(file: Path | None) -> list[dict[str, Any]]:
    """The whole lines of the file; a torn or foreign one is left out."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else ():
        try:
            entry = json.loads(line)
            if entry["scores"].keys() == WEIGHTS.keys() and isinstance(entry["step"], int) and entry["key"]:
                found.append({"reason": "", **entry})
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found
