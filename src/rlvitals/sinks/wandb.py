"""Weights & Biases: one W&B run for each attempt, all in one group, on the run's own step axis.

Every row is one history row with `rlvitals/step`, the x axis of the charts, so late and out-of-order steps are drawn at
the right place. Values keep their full precision, including NaN and infinities. Superseded rows stay in the W&B run of
the earlier attempt. After a resume there is another W&B run in the group, named "... (attempt 2)".

W&B first writes each run to its own file (`offline-run-.../run-ID.wandb`). A commit waits until that file holds the
rows and is on the disk. Nothing can be appended to the file after its writer has ended. So after a crash, or when rows
come for an attempt that was closed, the attempt is written again from the log to a new file under the same W&B id. The
old file is removed when the new one holds as many rows. After a crash there is thus one offline folder per attempt,
with every row once. If the old file was already uploaded with `wandb sync`, the new one replaces the upload: it has the
same id, and W&B starts a run that is not resumed from its beginning (not covered by tests).

In online mode a commit also waits only for the file. `close` waits for the upload, and a run that was not closed is
written again at the next opening. Online mode is not covered by tests, which have no network.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rlvitals.errors import SinkError
from rlvitals.leveldb import LevelDbReader
from rlvitals.records import SAMPLE_AXIS, STEP_AXIS, Row
from rlvitals.sinks.base import (
    RunFacts,
    Sink,
    SinkRow,
    attempt_name,
    check_settings,
    end_aside,
    explained,
    import_vendor,
    metric_name,
    rows_held,
)
from rlvitals.store.cursors import FORWARDED
from rlvitals.store.files import make_folder, sync_file, sync_folder
from rlvitals.store.layout import Forwarded

OURS = frozenset({"resume", "resume_from", "fork_from", "reinit"})
"""Parameters of `wandb.init` that this sink sets itself: each attempt is one W&B run, written from its beginning."""

FLUSH = "x_transaction_log_flush_interval"

QUIET: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "host": "",
    "disable_git": True,
    "disable_code": True,
    "disable_job_creation": True,
    "x_disable_stats": True,  # they would be about the follower process
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    FLUSH: 0.1,
}
"""No console output, no data about the machine or the user; the file is written often enough to wait for it."""

PATIENCE_SECONDS = 60.0
"""How long a commit waits if W&B's file does not grow."""

ABANDON_SECONDS = 5.0


class WandbSink(Sink):
    """Owns the W&B runs of a run's attempts and their folders, which it finds by their ids.

    Memory: `attempts`, which maps the attempt's number to the committed rows of each stream and to whether its W&B run
    was closed.
    """

    path_settings: ClassVar[frozenset[str]] = frozenset({"dir", "log_dir"})
    takes_samples: ClassVar[bool] = True

    def __init__(self, facts: RunFacts, settings: Mapping[str, Any], memory: dict[str, Any]) -> None:
        super().__init__(facts, settings, memory)
        self._wandb = _import_wandb()
        known = frozenset(inspect.signature(self._wandb.init).parameters) - {"anonymous"} | {"api_key", "log_dir"}
        check_settings("wandb", settings, known)
        for name in sorted(OURS.intersection(settings)):
            raise SinkError(f"tracker 'wandb' decides {name!r} itself (one W&B run for each attempt). Remove it")
        self._mode: str = settings.get("mode") or os.environ.get("WANDB_MODE") or "online"
        if self._mode == "disabled":
            raise SinkError("mode is 'disabled', so W&B would keep nothing. Use 'online' or 'offline', or remove it")
        self._vendor_settings = self._gather_settings()
        self._dir = Path(settings.get("dir") or settings.get("log_dir") or facts.root / "logs")
        try:
            make_folder(self._dir)
        except OSError as error:
            raise SinkError(f"cannot write to dir {str(self._dir)!r} ({error}). Give another dir") from error
        self._runs: dict[int, _AttemptRun] = {}
        if self._mode == "online":
            for number, committed in memory.get("attempts", {}).items():
                if not committed["closed"]:
                    self._open_attempt(int(number))

    def write(self, rows: Sequence[SinkRow]) -> None:
        for item in rows:
            run = self._runs.get(item.row.attempt) or self._open_attempt(item.row.attempt)
            run.log(item.stream, item.row)

    def commit(self) -> None:
        attempts = dict(self.memory.get("attempts", {}))
        for number, run in self._runs.items():
            run.wait_for_rows()
            run.remove_older()
            attempts[str(number)] = {**{stream: run.logged[stream] for stream in FORWARDED}, "closed": False}
        self.memory["attempts"] = attempts

    def close(self) -> None:
        for number, run in self._runs.items():
            run.finish()
            if str(number) in self.memory.get("attempts", {}):
                self.memory["attempts"][str(number)]["closed"] = True

    def abandon(self) -> None:
        # Finishing frees the id for the next opening.
        end_aside([run.drop for run in self._runs.values()], ABANDON_SECONDS)

    def _open_attempt(self, number: int) -> _AttemptRun:
        """A new W&B run for an attempt, to which its committed rows are written again."""
        held = rows_held(self.facts, number, self.memory.get("attempts", {}).get(str(number), {}), "W&B")
        run = self._runs[number] = _AttemptRun(self._start_vendor_run(number))
        for item in held:
            run.log(item.stream, item.row)
        return run

    def _start_vendor_run(self, number: int) -> Any:
        given = {key: value for key, value in self.settings.items() if key not in ("api_key", "log_dir", "settings")}
        name = given.get("name") or self.facts.name
        config = given.get("config") or {}
        if not isinstance(config, Mapping):
            raise SinkError(f"config must be a mapping to add to the run's config, found {type(config).__name__}")
        tags = given.get("tags")
        given |= {
            "id": re.sub(r"[^\w.-]", "-", f"{given.get('id') or self.facts.id}-a{number}"),
            "name": attempt_name(name, number),
            "group": given.get("group") or self.facts.id,
            "tags": [tags] if isinstance(tags, str) else tags,
            "config": {**self.facts.config, **config, "rlvitals": self.facts.about(number)},
            "dir": str(self._dir),
            "mode": self._mode,
            "reinit": "create_new",
        }
        with explained(
            lambda problem: (
                f"W&B cannot start: {problem}. Without an account or a network use mode: offline; "
                "otherwise give api_key, set WANDB_API_KEY, or run `wandb login`"
            )
        ):
            run = self._wandb.init(**given, settings=self._wandb.Settings(**self._vendor_settings))
            run.define_metric(STEP_AXIS)
            run.define_metric("*", step_metric=STEP_AXIS)
            run.define_metric(SAMPLE_AXIS)
        return run

    def _gather_settings(self) -> dict[str, Any]:
        """The arguments of `wandb.Settings`: our defaults, overridden by the user's, and the key if it is needed."""
        given = self.settings.get("settings") or {}
        if not isinstance(given, Mapping):
            raise SinkError(f"settings must be a mapping of W&B settings, found {type(given).__name__}")
        known = frozenset(self._wandb.Settings.model_fields)
        if FLUSH not in known:
            raise SinkError("this wandb is too old. Install a newer one with: pip install -U 'rlvitals[wandb]'")
        check_settings("wandb", given, known)
        # In the settings, the key stays in this process; `wandb.login` would write it to ~/.netrc.
        key = self.settings.get("api_key")
        secret = {"api_key": key} if key and self._mode != "offline" else {}
        return {**{name: value for name, value in QUIET.items() if name in known}, **given, **secret}


class _AttemptRun:
    """One W&B run being written: how many rows were logged to it, and how many of them its file holds."""

    def __init__(self, run: Any) -> None:
        self.logged: Counter[Forwarded] = Counter()
        self._sampled: set[str] = set()
        self._run = run
        self._file = _RunFile(Path(run.settings.sync_file))
        folder = self._file.path.parent
        siblings = re.compile(rf"(offline-)?run-\d{{8}}_\d{{6}}-{re.escape(run.id)}(-\w+)?")
        self._older = [
            path for path in folder.parent.iterdir() if path.name != folder.name and siblings.fullmatch(path.name)
        ]

    def log(self, stream: Forwarded, row: Row) -> None:
        values: dict[str, Any] = {STEP_AXIS: row.step}
        if stream == "system":
            values = {SAMPLE_AXIS: row.step}
            for name in row.numbers.keys() - self._sampled:  # single names: of two patterns W&B may use either
                self._run.define_metric(name, step_metric=SAMPLE_AXIS)
            self._sampled.update(row.numbers)
        if math.isfinite(row.timestamp):
            values["_timestamp"] = row.timestamp
        for name, value in (*row.numbers.items(), *row.texts.items()):
            values[metric_name(stream, name)] = value
        self._run.log(values)
        self.logged[stream] += 1

    def wait_for_rows(self) -> None:
        """Return when the file holds every row and is synced to disk."""
        self._wait(lambda: self._file.rows >= self.logged.total())
        self._file.sync()

    def finish(self) -> None:
        """End the W&B run: complete its file, and upload it in online mode."""
        self._run.finish(exit_code=0)
        self._wait(lambda: self._file.has_ended)
        self._file.sync()

    def drop(self) -> None:
        self._run.finish(exit_code=1)

    def remove_older(self) -> None:
        """Remove older folders of this attempt: the new one holds as many rows, and `wandb sync` must not find both."""
        for folder in self._older:
            for file in folder.glob("*.wandb"):
                file.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
        self._older = []

    def _wait(self, is_there: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            has_grown = self._file.read_on()
            if is_there():
                return
            if has_grown:
                until = time.monotonic() + PATIENCE_SECONDS
            elif time.monotonic() > until:
                raise SinkError(
                    f"W&B has written {self._file.rows} of {self.logged.total()} rows to {self._file.path} and has "
                    "stopped. Is the disk full?"
                )
            else:
                time.sleep(0.01)


class _RunFile:
    """W&B's file of one run, read as it grows: a LevelDB log of protobuf records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.has_ended = False
        self._log = LevelDbReader()
        self._record: Any = import_vendor("wandb.proto.wandb_internal_pb2", "wandb").Record

    def read_on(self) -> bool:
        """Read the records that were added; False if there were none."""
        before = self._log.position
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            for record in self._log.read(file):
                self._count(record)
        return self._log.position > before

    def sync(self) -> None:
        """Sync the file and its folders to disk."""
        sync_file(self.path)
        sync_folder(self.path.parent)
        sync_folder(self.path.parent.parent)

    def _count(self, record: bytes) -> None:
        kind = self._record.FromString(record).WhichOneof("record_type")
        self.rows += kind == "history"
        self.has_ended |= kind == "exit"


def _import_wandb() -> Any:
    if "wandb" not in sys.modules:
        # A trainer that uses W&B itself passes its own service and run to child processes.
        for name in ("WANDB_SERVICE", "WANDB_RUN_ID", "WANDB_RESUME"):
            os.environ.pop(name, None)
    return import_vendor("wandb", "wandb")
