"""Small logs of every format. A new format needs one here: recognising it, following it while it grows and reading it
when it is damaged are tested with these.
"""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import struct
import tempfile
import zlib
from pathlib import Path

import pytest

ROWS = [{"step": step, "loss": 1 / step, "reward": step / 10, "kl": 0.1, "eval_acc": 0.5} for step in range(1, 13)]


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


def sample_bytes(sample):
    """The content of one small log."""
    made = sample() if callable(sample) else sample
    return made.encode() if isinstance(made, str) else made
