"""Reads pairs of texts from lines of JSON, the input of `rlvitals eval`.

Each line is one object, with the prediction and the reference under these keys or a common alternative. Blank lines are
skipped. A line that is not a pair raises an error with its number, or is skipped and reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rlvitals.errors import BadText
from rlvitals.textscore.score import text_of

PREDICTION_KEYS = ("prediction", "pred", "output", "response", "completion")
REFERENCE_KEYS = ("reference", "ref", "target", "answer", "gold")

BOM = b"\xef\xbb\xbf"


class Pair(NamedTuple):
    """One line: its number (from 1), the two texts, and the row's own id if it has one."""

    line: int
    prediction: str
    reference: str
    id: str | int | None = None


def read_pairs(
    lines: Iterable[bytes],
    *,
    prediction_key: str | None = None,
    reference_key: str | None = None,
    skip_bad: bool = False,
) -> tuple[list[Pair], list[str]]:
    """The pairs, and with `skip_bad` the error of each line that is not a pair.

    >>> read_pairs([b'{"response": "a", "target": "b", "id": 7}', b""])
    ([Pair(line=1, prediction='a', reference='b', id=7)], [])
    """
    predictions = (prediction_key,) if prediction_key else PREDICTION_KEYS
    references = (reference_key,) if reference_key else REFERENCE_KEYS
    pairs, bad = [], []
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(BOM) if number == 1 else line
        if not text.strip():
            continue
        try:
            pairs.append(_pair_of(number, text, predictions, references))
        except BadText as error:
            if not skip_bad:
                raise BadText(f"line {number}: {error} --skip-bad leaves such lines out and counts them.") from error
            bad.append(f"line {number}: {error}")
    return pairs, bad


def _pair_of(number: int, line: bytes, predictions: tuple[str, ...], references: tuple[str, ...]) -> Pair:
    try:
        row = json.loads(line)  # not orjson: it rejects lone surrogates, which models do write
    except (ValueError, RecursionError) as error:
        raise BadText("it is not JSON, or was cut off.") from error
    if not isinstance(row, dict):
        raise BadText("it is not a JSON object.")
    identity = row.get("id")
    return Pair(
        number,
        text_of(_value(row, predictions, "prediction"), "prediction"),
        text_of(_value(row, references, "reference"), "reference"),
        _plain(identity),
    )


def _plain(identity: object) -> str | int | None:
    """The id in a form that can be written to a file: without lone surrogates, and with at most 64 bits."""
    if isinstance(identity, str):
        return identity.encode("utf-8", "replace").decode()
    return identity if isinstance(identity, int) and abs(identity) < 2**63 else None


def _value(row: Mapping[str, Any], keys: tuple[str, ...], side: str) -> Any:
    for key in keys:
        if key in row:
            return row[key]
    raise BadText(f"it has no {side}: none of {', '.join(keys)} is there. --{side}-key names another field.")
