"""Searches rollouts for a text: a byte search over the files, with each hit checked.

There is no index of words. In a measurement on 554 MiB, a full-text table took 90 seconds to build and half as much
disk space again. Reading the files takes one or two seconds, finds parts of words in any script, and stops when it has
found enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlvitals.codec import encode, leaves
from rlvitals.store.archive import open_log
from rlvitals.store.rollouts import parse_group


def search(path: Path, text: str) -> Iterator[tuple[int, list[int]]]:
    """The lines of a file that contain a text: the offset of each line, and the numbers (from 1) of the matching
    rollouts.

    Letter case does not matter. A prompt counts as a text of its group's first rollout.
    """
    wanted = text.lower()
    needle = as_written(wanted)
    try:
        with open_log(path) as file:
            data = file.read()
    except OSError:
        return
    # Lowering bytes works for ASCII only. Other scripts are lowered as text, which may shift offsets.
    lowered = data.lower() if wanted.isascii() else None
    if lowered is None and needle not in data.decode("utf-8", "replace").lower().encode():
        return
    offset = 0
    while offset < len(data):
        if lowered is not None:
            hit = lowered.find(needle, offset)
            if hit < 0:
                return
            offset = data.rfind(b"\n", offset, hit) + 1 or offset
        end = data.find(b"\n", offset)
        end = len(data) if end < 0 else end
        group = parse_group(data[offset:end])
        if group is not None and (found := places(group, wanted)):
            yield offset, found
        offset = end + 1


def as_written(text: str) -> bytes:
    r"""A text as it appears in a line of JSON: quotes and line ends are escaped.

    >>> as_written('say "no"')
    b'say \\"no\\"'
    """
    return encode({"": text})[5:-3] if text else b""


def places(group: dict[str, Any], wanted: str) -> list[int]:
    """The numbers (from 1) of the rollouts of a group that contain a text, which must be lower case."""
    found = []
    for place, rollout in enumerate(group["rollouts"], 1):
        texts = _texts(rollout) if isinstance(rollout, dict) else ()
        if (place == 1 and wanted in str(group.get("prompt", "")).lower()) or any(
            wanted in part.lower() for part in texts
        ):
            found.append(place)
    return found


def _texts(rollout: dict[str, Any]) -> Iterator[str]:
    yield str(rollout.get("outcome", ""))
    yield str(rollout.get("error", ""))
    turns = rollout.get("turns")
    for turn in turns if isinstance(turns, list) else ():
        if not isinstance(turn, dict):
            continue
        yield str(turn.get("text", ""))
        yield str(turn.get("observation", ""))
        yield from (str(leaf) for leaf in leaves(turn.get("calls")) if leaf is not None)
