"""Every importer reads damaged files: small logs of each format, cut, doubled, flipped, spliced, in a wrong encoding.

Reading any file gives rows of numbers or raises NotALog.
"""

from __future__ import annotations

import json
import random
import time

import pytest
from format_samples import CONSOLE, DRAWN, LOOSE, ROWS, SAMPLES, csv_text, nested, sample_bytes

from followed import with_growth
from rlvitals.errors import MissingDependency
from rlvitals.importers import LogTail, NotALog, read_log
from rlvitals.importers.registry import importers

CHANGES = 40
"""The number of damaged files per sample."""
PATIENCE = 20.0
"""The most seconds for one small file, on a busy machine."""
IMPORTERS = {importer.name: importer for importer in importers()}


def cut(data, chance):
    return data[: chance.randrange(len(data) + 1)]


def without_a_piece(data, chance):
    start = chance.randrange(len(data))
    return data[:start] + data[start + chance.randrange(200) :]


def doubled(data, chance):
    start = chance.randrange(len(data))
    piece = data[start : start + chance.randrange(1, 400)]
    return data[:start] + piece * chance.choice([2, 3, 50]) + data[start:]


def flipped(data, chance):
    changed = bytearray(data)
    for _ in range(chance.choice([1, 3, 30])):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def spliced(data, chance):
    other = sample_bytes(chance.choice([CONSOLE, LOOSE, DRAWN, nested(), csv_text(), json.dumps(ROWS)]))
    start = chance.randrange(len(data))
    return data[:start] + other[chance.randrange(len(other)) :] + data[chance.choice([start, len(data)]) :]


def shuffled(data, chance):
    found = data.splitlines(keepends=True)
    chance.shuffle(found)
    return b"".join(found)


def recoded(data, chance):
    text = data.decode("utf-8", "replace")
    return text.encode(chance.choice(["utf-16", "utf-16-le", "utf-32", "latin-1", "utf-8-sig", "cp037"]), "replace")


def swapped(data, chance):
    """Replaces characters that have a meaning by others."""
    old, new = chance.choices(
        [b"0", b",", b":", b'"', b"\n", b"|", b" ", b"{", b"[", b"%", b".", b"/", b"-", b"1e999"], k=2
    )
    return data.replace(old, new, chance.choice([1, 5, 10_000]))


DAMAGE = [cut, without_a_piece, doubled, flipped, spliced, shuffled, recoded, swapped]


def is_rows(rows):
    return all(
        type(row["step"]) is int
        and all(type(name) is str and type(value) in (int, float) for name, value in row.items())
        for row in rows
    )


def rows_or_none(read):
    """The rows, or None if `read` raises NotALog or MissingDependency. Any other result fails the test."""
    start = time.perf_counter()
    try:
        rows = read()
    except (NotALog, MissingDependency):
        rows = None
    assert time.perf_counter() - start < PATIENCE
    assert rows is None or (rows and is_rows(rows))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPORTERS)
def test_a_damaged_file_gives_rows_or_is_no_log(tmp_path, name):
    chance = random.Random(name)
    for number, sample in enumerate(SAMPLES.get(name, [])):
        whole = sample_bytes(sample)
        for change in range(CHANGES):
            data = whole
            for damage in chance.sample(DAMAGE, k=chance.choice([1, 1, 2, 3])):
                data = damage(data, chance) if data else data
            path = tmp_path / f"{number}-{change}"
            path.write_bytes(data)
            rows = rows_or_none(lambda path=path: read_log(path).rows)
            rows_or_none(lambda path=path: IMPORTERS[name]().rows(path))
            if change % 8 == 0:
                tail = LogTail(path)
                assert repr(with_growth(with_growth([], tail.poll()), tail.finish())) == repr(rows or [])


@pytest.mark.parametrize("name", IMPORTERS)
def test_the_samples_are_of_their_formats(tmp_path, name):
    """The test with damaged files needs samples that can be read when undamaged."""
    for number, sample in enumerate(SAMPLES.get(name, [])):
        path = tmp_path / str(number)
        path.write_bytes(sample_bytes(sample))
        try:
            rows = IMPORTERS[name]().rows(path)
        except (NotALog, MissingDependency):
            assert name == "sqlite"  # a database of something else
        else:
            assert len(rows) >= 3
