"""Inspect's evaluation logs: `.eval`, a zip archive with one file per sample, and `.json`.

Read in UKGovernmentBEIS/inspect_ai at 499e6152 (`src/inspect_ai/log/_log.py`, `log/_recorders/eval.py`). The epochs
of a sample form its group. The reward is the first scorer's value: `C`, `P`, `I` and `N` count 1, 0.5, 0 and 0, as in
Inspect. Newer versions compress an archive's files with zstd, which needs Python 3.14, `zstandard` or `pyarrow`.
"""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlvitals.errors import NotALog
from rlvitals.importers.base import Notes, open_foreign
from rlvitals.importers.dumps.base import (
    DocumentForm,
    RowContents,
    Split,
    document,
    inner,
    is_usable,
    outcome_of,
    parsed,
)
from rlvitals.importers.packed import zstd_stream
from rlvitals.store.messages import are_messages, text_of

MEMBER_BYTES = 256 * 2**20
"""The largest sample that is read."""

_ZSTANDARD = 93
_BLOCK = 1 << 20
_LOCAL = struct.Struct("<4s5H3L2H")
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_ATTACHED = "attachment://"


class Inspect(DocumentForm):
    """A log of one evaluation."""

    name = "inspect"
    writes = "Inspect's .eval and .json logs"
    # Inspect starts a log's name with the time. Other names would match any JSON file.
    places = tuple(f"{folder}{name}" for folder in ("", "logs/") for name in ("*.eval", "20[0-9][0-9]-*T*_*.json"))

    def recognises(self, path: Path, row: Any) -> bool:
        if path.suffix == ".eval":
            return True
        return (
            isinstance(row, Mapping) and isinstance(row.get("samples"), list) and isinstance(row.get("eval"), Mapping)
        )

    def split_of(self, path: Path) -> Split | None:
        return "validation"

    def rows(self, path: Path, notes: Notes, *, whole: bool) -> Iterable[RowContents]:
        samples = _members(path, notes) if path.suffix == ".eval" else document(path).get("samples") or []
        return (_contents(sample) for sample in samples if isinstance(sample, Mapping))


def _members(path: Path, notes: Notes) -> Iterable[Any]:
    try:
        with open_foreign(path) as file, zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if not (member.filename.startswith("samples/") and member.filename.endswith(".json")):
                    continue
                if member.file_size > MEMBER_BYTES:
                    notes.count("1 sample is too large and was skipped", "{} samples are too large and were skipped")
                    continue
                yield parsed(_unpacked(file, archive, member))
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise NotALog(path, f"it is not a whole archive ({error})") from error


def _unpacked(file: Any, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """A member's bytes. zipfile supports zstd only since Python 3.14."""
    if member.compress_type != _ZSTANDARD:
        with archive.open(member) as stream:
            return stream.read(MEMBER_BYTES)
    file.seek(member.header_offset)
    head = _LOCAL.unpack(file.read(_LOCAL.size))
    file.seek(head[-2] + head[-1], 1)  # the member's name and extra fields
    parts, size = [], 0
    with contextlib.closing(zstd_stream(io.BytesIO(file.read(member.compress_size)))) as stream:
        while size < MEMBER_BYTES and (part := stream.read(_BLOCK)):
            parts.append(part)
            size += len(part)
    return b"".join(parts)


def _contents(sample: Mapping[str, Any]) -> RowContents:
    attached = inner(sample, "attachments")
    scores = {str(name): score for name, score in inner(sample, "scores").items() if isinstance(score, Mapping)}
    values = {name: value for name, score in scores.items() if (value := _value(score.get("value"))) is not None}
    reward = next(iter(values.values()), None)
    failed = inner(sample, "error").get("message")
    given, messages = sample.get("input"), _resolved(sample.get("messages"), attached)
    usage = [item for item in inner(sample, "model_usage").values() if isinstance(item, Mapping)]
    total = [item["total_tokens"] for item in usage if is_usable(item.get("total_tokens"))]
    rollout: dict[str, Any] = {
        **({"messages": messages} if are_messages(messages) else {"completion": _completion(sample)}),
        "reward": reward,
        "reward_parts": values if len(values) > 1 else {},
        "outcome": "error" if failed else outcome_of(reward),
        "error": str(failed or ""),
        "stop": str(inner(sample, "output").get("stop_reason") or ""),
        "seconds": sample.get("total_time"),
        "tokens": sum(total) if total else None,
        "rubric": {name: score["explanation"] for name, score in scores.items() if score.get("explanation")},
        "meta": {"epoch": sample.get("epoch"), **inner(sample, "metadata")},
    }
    group: dict[str, Any] = {
        "id": str(sample.get("id", "")), "answer": text_of(sample.get("target")), "rollouts": [rollout],
    }  # fmt: skip
    if given is not None:
        group["prompt"] = _resolved(given, attached)
    return RowContents(0, group, "validation")


def _value(value: Any) -> float | None:
    if isinstance(value, str):
        return _GRADES.get(value)
    return float(value) if is_usable(value) else None


def _completion(sample: Mapping[str, Any]) -> str:
    choices = inner(sample, "output").get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    return text_of(inner(first, "message").get("content")) if isinstance(first, Mapping) else ""


def _resolved(value: Any, attached: Mapping[str, Any]) -> Any:
    """Replaces references to attachments with their texts."""
    if isinstance(value, str) and value.startswith(_ATTACHED):
        return text_of(attached.get(value.removeprefix(_ATTACHED), value))
    if isinstance(value, list):
        return [_resolved(item, attached) for item in value]
    if isinstance(value, Mapping):
        return {key: _resolved(item, attached) for key, item in value.items()}
    return value
