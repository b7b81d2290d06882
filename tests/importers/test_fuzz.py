"""Every importer reads damaged files: small logs of each format, cut, doubled, flipped, spliced, in a wrong encoding.

Reading any file gives rows of numbers or raises NotALog. A format without a sample here fails the test.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import sqlite3
import struct
import tempfile
import time
import zlib
from pathlib import Path

import pytest

from followed import with_growth
from rlvitals.errors import MissingDependency
from rlvitals.importers import LogTail, NotALog, read_log
from rlvitals.importers.registry import importers

ROWS = [{"step": step, "loss": 1 / step, "reward": step / 10, "kl": 0.1, "eval_acc": 0.5} for step in range(1, 13)]
CHANGES = 40
"""The number of damaged files per sample."""
PATIENCE = 20.0
"""The most seconds for one small file, on a busy machine."""


def lines(template):
    return "".join(template.format(**row) + "\n" for row in ROWS)


def csv_text(delimiter=","):
    rows = [list(ROWS[0]), *(row.values() for row in ROWS)]
    return "".join(delimiter.join(map(str, row)) + "\n" for row in rows)


CONSOLE = (
    "python train.py --learning-rate 1e-6\nTotal steps = 12\n"
    + lines("step:{step} - actor/loss:{loss} - reward:np.float64({reward})")
    + lines("{{'loss': {loss}, 'reward': {reward},\n 'parts': {{'a': [1, 2]}}}}")
    + lines("\r {step}%|██ | {step}/12 [00:10<01:20, 1.2it/s, loss={loss}]")
)
LOOSE = (
    lines("[rank0]: 2025-01-01 12:00:00 INFO Epoch:[1/1]({step}/12), loss: {loss}, acc: {eval_acc}%, 1.2k tok/s")
    + lines("=== Step {step}/12 ===\n  • reward: {reward}\n  • time: 3.2s (10.0%)")
    + "奖励: 0.35, 步数: 10\n"
)
DRAWN = (
    "Step 1\n┏━━━━┳━━━━┓\n┃ Metric ┃ Value ┃\n┡━━━━╇━━━━┩\n│ reward │ 0.5 │\n└────┴────┘\n"
    + "| rollout/ |  |\n|  ep_rew_mean | 1,234 |\n| time/iterations | 3 |\n----\n"
    + "| step | loss |\n|---|---|\n"
    + lines("| {step} | {loss} |")
    + "step  loss  reward\n"
    + lines("{step}  {loss}  {reward}")
)


def notebook_log():
    pieces = [json.dumps({"stream_name": "stdout", "time": n, "data": f"{row}\n"}) for n, row in enumerate(ROWS)]
    return "[" + "\n,".join(pieces) + "\n]"


def notebook():
    cells = "".join("<tr>" + "".join(f"<td>{value}</td>" for value in row.values()) + "</tr>" for row in ROWS)
    names = "".join(f"<th>{name}</th>" for name in ROWS[0])
    table = {"output_type": "display_data", "data": {"text/html": [f"<table><tr>{names}</tr>{cells}</table>"]}}
    printed = {"output_type": "stream", "name": "stdout", "text": [f"{row}\n" for row in ROWS]}
    code = {"cell_type": "code", "source": ["trainer.train()"], "outputs": [table, printed], "metadata": {}}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [code]}, indent=1)


def nested():
    train = {"step": [1, 2, 3], "loss": [0.3, 0.2, 0.1], "parts": {"kl": [1, 2, 3]}}
    return json.dumps({"config": {"learning_rate": 1e-6}, "history": {"train": train, "eval": ROWS}}, indent=1)


def database(script, *inserts):
    """The bytes of an SQLite file."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(script)
    for insert, values in inserts:
        connection.executemany(insert, values)
    connection.commit()
    return connection.serialize()


def mlflow():
    script = (
        "CREATE TABLE runs (run_uuid, name, start_time, lifecycle_stage); CREATE TABLE params (run_uuid, key, value);"
        "CREATE TABLE metrics (run_uuid, key, value, timestamp, step, is_nan);"
    )
    points = [("r", name, row[name], 1_764_000_000_000, row["step"], 0) for row in ROWS for name in ("loss", "reward")]
    runs = ("INSERT INTO runs VALUES (?, ?, ?, ?)", [("r", "run", 1_764_000_000_000, "active")])
    return database(script, runs, ("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", points))


def trackio():
    script = "CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name, step, timestamp, metrics)"
    rows = [("run", row["step"], "2025-01-01T00:00:00", json.dumps(row)) for row in ROWS]
    return database(script, ("INSERT INTO metrics (run_name, step, timestamp, metrics) VALUES (?, ?, ?, ?)", rows))


def records(mark, number, version, contents):
    """The file of a tracker: a header, then records with checksums."""
    found = struct.pack("<4sHB", mark, number, version)
    for data in contents:
        found += struct.pack("<IHB", zlib.crc32(data, zlib.crc32(b"\x01")), len(data), 1) + data
    return found


def wandb():
    pytest.importorskip("wandb", reason="needs the wandb package")
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for row in ROWS:
        record = Record()
        for name, value in row.items():
            record.history.item.add(key=name, value_json=json.dumps(value))
        found.append(record.SerializeToString())
    return records(b":W&B", 0xBEE1, 0, found)


def swanlab():
    scalars = [
        {"model_type": "SCALAR", "key": "loss", "step": n, "metric": {"index": n, "data": 1 / n}} for n in range(1, 9)
    ]
    return records(b":SWL", 0xE1D6, 1, [json.dumps(scalar).encode() for scalar in scalars])


def tensorboard():
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer", reason="needs tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    with tempfile.TemporaryDirectory() as folder:
        file = writer.EventFileWriter(folder)
        for row in ROWS:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
            file.add_event(Event(step=row["step"], wall_time=1_764_000_000.0, summary=Summary(value=values)))
        file.close()
        (path,) = Path(folder).iterdir()
        return path.read_bytes()


def parquet():
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    from pyarrow.parquet import write_table

    buffer = io.BytesIO()
    write_table(pyarrow.Table.from_pylist(ROWS), buffer)
    return buffer.getvalue()


SAMPLES = {
    "console": [CONSOLE, LOOSE, DRAWN, lines("step {step} loss {loss} reward {reward}")],
    "csv": [csv_text(), csv_text(";").replace(".", ","), f"# two, in front\n\n{csv_text()}\nEvaluation\n{csv_text()}",
            "step,metric,value\n" + lines("{step},reward,{reward}"),
            '"Step","a - reward","a - reward__MIN","b - reward"\n' + lines('"{step}","{reward}","0","1"')],
    "json": [json.dumps({"log_history": ROWS, "max_steps": 12}, indent=1), json.dumps(ROWS, indent=1), nested(),
             json.dumps({"reward": [[n, n / 10] for n in range(9)], "kl": [[n, 0.5] for n in range(9)]}, indent=1),
             "\n".join(json.dumps(row, indent=1) for row in ROWS)],
    "jsonl": ["".join(json.dumps(row) + "\n" for row in ROWS),
              "".join(json.dumps({"step": row["step"], "data": row}) + "\n" for row in ROWS)],
    "mlflow": [mlflow],
    "notebook": [notebook],
    "notebook log": [notebook_log],
    "packed": [lambda: gzip.compress(csv_text().encode())],
    "parquet": [parquet],
    "sqlite": [lambda: database("CREATE TABLE users (id)")],
    "swanlab": [swanlab],
    "tensorboard": [tensorboard],
    "trackio": [trackio],
    "wandb": [wandb],
}  # fmt: skip
"""Format -> small logs: their text, or a function that returns their bytes."""
IMPORTERS = {importer.name: importer for importer in importers()}


def sample_bytes(sample):
    made = sample() if callable(sample) else sample
    return made.encode() if isinstance(made, str) else made


def test_each_format_has_a_sample():
    assert IMPORTERS.keys() <= SAMPLES.keys(), "a new format needs a small log in SAMPLES"


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
