"""A cache in front of any teacher: each answer to a task is judged once.

The key is a hash of the teacher's identity, the task and the answer. Failed judgements are not stored. A teacher that
raises, or returns something other than scores from 0 to 1, has failed (`judge_guard`). With a file, judgements survive
the process. `forget_after` removes those of an abandoned attempt, so that a resumed run has the same cache hits as an
uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvitals.store.files import append_line, replace_file
from rlvitals.train.judge_guard import JudgeGuard
from rlvitals.train.teachers.base import WEIGHTS, AnswerToJudge, Judgement, Teacher, read_scores

MAX_ENTRIES = 200_000


class CachedTeacher:
    """Sends the teacher only answers that are not in the cache, each different one once."""

    def __init__(self, teacher: Teacher, file: Path | None = None, *, size: int = MAX_ENTRIES) -> None:
        self._teacher, self._file, self._size = teacher, file, size
        self._guard = JudgeGuard("the teacher")
        self._known: dict[str, Judgement] = {}  # the oldest first
        self.step = 0
        """The trainer's step, stored with each entry."""
        for entry in _entries(file):
            self._keep(entry)

    def judge(self, questions: Sequence[AnswerToJudge]) -> list[Judgement]:
        """A judgement for each question. Only those that the teacher was asked for now have tokens, each once."""
        keys = [self._key(question) for question in questions]
        new = {key: question for key, question in zip(keys, questions, strict=True) if key not in self._known}
        fresh = dict(zip(new, self._ask(list(new.values())), strict=True))
        found, unpaid = [], set(fresh)
        for key in keys:
            judgement = fresh[key] if key in fresh else self._known[key]
            if key not in unpaid:
                is_cached = judgement.scores is not None
                judgement = replace(judgement, prompt_tokens=0, completion_tokens=0, is_cached=is_cached)
            unpaid.discard(key)
            found.append(judgement)
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
        """Ask the teacher without the cache, to measure its agreement with itself."""
        return self._ask(questions)

    def forget_after(self, step: int) -> None:
        """Remove entries of later steps, in memory and in the file."""
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
        task = question.task
        parts = (self._teacher.identity, task.prompt, task.entry_point, task.tests, question.answer)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def _keep(self, entry: dict[str, Any]) -> None:
        self._known[entry["key"]] = Judgement(entry["scores"], entry["reason"])
        if len(self._known) > self._size:
            del self._known[next(iter(self._known))]


def _lines(entries: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


def _entries(file: Path | None) -> list[dict[str, Any]]:
    """The complete entries of the file. Torn and foreign lines are left out."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else ():
        try:
            entry = json.loads(line)
            if entry["scores"].keys() == WEIGHTS.keys() and isinstance(entry["step"], int) and entry["key"]:
                found.append({"reason": "", **entry})
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found
