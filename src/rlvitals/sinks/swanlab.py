"""SwanLab: one experiment for each attempt, all in one group.

A resume opens a second experiment, "NAME (attempt 2)", in the same group; superseded rows stay in the first one.

After a crash of the follower in the modes `offline` and `local`, the attempt is written again from the log when the
next row comes, because a SwanLab file cannot be continued. The new folder is `run-RUNID-ATTEMPT-N`; the old folder is
removed when the new one is on disk, so one folder per attempt remains. If the follower is killed after the last row,
the file has all rows but is shown as crashed, because its end is missing. In the mode `online` the experiment is
resumed under its id. SwanLab then skips rows that it already has, and also late rows, whose step is lower than the last
one of the metric.

For hardware samples (`System/...`), the step is the number of the sample.

SwanLab stores float64, including NaN and infinities, and texts as text media. Of two values of a metric at one step it
keeps the first. It stores no negative steps, and the time of delivery instead of the row's time.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import re
import shutil
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rlvitals.errors import SinkError
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
from rlvitals.store.files import sync_file, sync_folder

OWN_CHOICES = frozenset({"id", "resume", "reinit", "parallel", "callbacks", "kwargs"})
"""Parameters of `swanlab.init` that this sink sets itself, because the experiments of attempts depend on them."""

OLDER_NAMES = frozenset({"experiment_name", "logdir", "notes"})
"""Old parameters that `swanlab.init` accepts although they are not in its signature."""

TAKE_SECONDS = 120.0
"""How long SwanLab's threads may take for a batch before it is reported as failed."""

LETTING_GO_SECONDS = 5.0

MOST_UNDER_WAY = 100_000
"""Largest number of values in SwanLab's queue. Without a limit, writing an attempt again could fill the memory."""

HIGHEST_STEP = 2**48


class SwanLabSink(Sink):
    """Forwards to SwanLab. Owns the experiments of this run, and in the local modes their folders."""

    path_settings: ClassVar[frozenset[str]] = frozenset({"log_dir", "logdir"})
    takes_samples: ClassVar[bool] = True

    def __init__(self, facts: RunFacts, settings: Mapping[str, Any], memory: dict[str, Any]) -> None:
        super().__init__(facts, settings, memory)
        self._swanlab = import_vendor("swanlab", "swanlab")
        known = frozenset(inspect.signature(self._swanlab.init).parameters) | OLDER_NAMES | {"login_kwargs"}
        check_settings("swanlab", settings, known - OWN_CHOICES)
        login = settings.get("login_kwargs") or {}
        check_settings("swanlab, login_kwargs", login, frozenset(inspect.signature(self._swanlab.login).parameters))
        self._swanlab.pkg.console.c.quiet = True
        try:
            self._options = self._swanlab.Settings(**_options(settings.get("settings") or {}))
            mode = settings.get("mode") or self._options.mode
        except ValueError as error:
            raise SinkError(f"tracker 'swanlab': SwanLab does not accept its settings: {error}") from error
        if mode == "disabled":
            raise SinkError("tracker 'swanlab': mode 'disabled' keeps nothing. Use online, offline or local.")
        self._is_online = mode in ("online", "cloud")
        self._folder = Path(settings.get("log_dir") or settings.get("logdir") or self._options.log_dir).absolute()
        self._run_id = re.sub(r"[^\w.-]", "_", facts.id) or hashlib.sha256(str(facts.root).encode()).hexdigest()[:12]
        self._held: dict[str, dict[str, int]] = copy.deepcopy(memory.get("experiments", {}))
        """For each attempt: how often its experiment was started, and how many rows of each stream it holds."""
        self._taken: list[SinkRow] = []
        self._experiment: _Experiment | None = None
        self._attempt = 0
        if not self._is_online:
            self._remove_all_but_held()

    def write(self, rows: Sequence[SinkRow]) -> None:
        self._taken.extend(rows)

    def commit(self) -> None:
        for attempt in sorted({item.row.attempt for item in self._taken}):
            rows = [item for item in self._taken if item.row.attempt == attempt]
            experiment = self._open(attempt)
            experiment.log(rows)
            experiment.settle()
            held = self._held[str(attempt)]
            for item in rows:
                held[item.stream] += 1
        self._taken = []
        self.memory = {"experiments": copy.deepcopy(self._held)}
        if not self._is_online:
            self._remove_all_but_held()

    def close(self) -> None:
        experiment, self._experiment = self._experiment, None
        if experiment is not None:
            experiment.finish()

    def abandon(self) -> None:
        experiment, self._experiment = self._experiment, None
        if experiment is not None:
            experiment.let_go()

    def _open(self, attempt: int) -> _Experiment:
        """The open experiment of an attempt. If an earlier one cannot be continued, its rows are written again from the
        log.
        """
        if self._experiment is not None and self._attempt == attempt:
            return self._experiment
        self.close()
        before = self._held.get(str(attempt))
        held: dict[str, int] = dict.fromkeys(("begun", *FORWARDED), 0) | (before or {})
        held["begun"] += 1
        self._held[str(attempt)] = held
        self._experiment = self._begin(attempt, held["begun"])
        self._attempt = attempt
        if before and not self._is_online:
            self._experiment.log(rows_held(self.facts, attempt, before, "SwanLab"))
        return self._experiment

    def _begin(self, attempt: int, count: int) -> _Experiment:
        given = {key: value for key, value in self.settings.items() if key not in ("login_kwargs", "settings")}
        name = given.pop("experiment_name", None) or given.pop("name", None) or self.facts.name
        given.pop("name", None)
        given.pop("logdir", None)
        options = self._options.model_copy(deep=True)
        if self._is_online:
            identity = {"id": f"{self._run_id}-{attempt}", "resume": "allow"}
        else:
            identity = {"id": self._id(attempt, count)}
            options.merge_settings({"run": {"dir": f"run-{identity['id']}"}})
        about = {key: value for key, value in self.facts.about(attempt).items() if value is not None}
        arguments = {
            "project": "rlvitals",
            "group": name,
            **given,
            **identity,
            "name": attempt_name(name, attempt),
            "log_dir": str(self._folder),
            "config": {**self.facts.config, **(given.get("config") or {}), "rlvitals": about},
            "settings": options,
        }
        with explained(
            lambda problem: (
                f"SwanLab cannot start: {problem}. A key is in your settings at https://swanlab.cn; give it "
                "as login_kwargs: {api_key: ...} or SWANLAB_API_KEY, or use mode: offline."
            )
        ):
            if self._is_online and self.settings.get("login_kwargs"):
                self._swanlab.login(**self.settings["login_kwargs"])
            return _Experiment(self._swanlab, arguments, is_online=self._is_online)

    def _id(self, attempt: int, count: int) -> str:
        return f"{self._run_id}-{attempt}-{count}"

    def _remove_all_but_held(self) -> None:
        """Remove folders of this run that a crash left behind or that newer ones replace."""
        keep = {f"run-{self._id(int(attempt), held['begun'])}" for attempt, held in self._held.items()}
        with contextlib.suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                if path.name.startswith(f"run-{self._run_id}-") and path.name not in keep:
                    shutil.rmtree(path, ignore_errors=True)


class _Experiment:
    """One open SwanLab run. It checks how many values SwanLab has stored."""

    def __init__(self, swanlab: Any, arguments: Mapping[str, Any], *, is_online: bool) -> None:
        self._swanlab = swanlab
        self._is_online = is_online
        self._tally = _new_tally(swanlab)
        self._sent = 0
        self._is_text: dict[str, bool] = {}
        self._run = swanlab.init(callbacks=[self._tally], **arguments)
        try:
            core = self._run._core
            self._store = core._store = _WatchedStore(core._store)
        except AttributeError as error:
            self.let_go()
            raise SinkError(
                f"swanlab {swanlab.__version__} stores its records in a format that this rlvitals does not support; "
                "pip install 'swanlab>=0.10,<0.11'"
            ) from error

    def log(self, rows: Iterable[SinkRow]) -> None:
        for item in rows:
            values = self._values(item)
            if values and 0 <= item.row.step <= HIGHEST_STEP:
                self._run.log(values, step=item.row.step)
                self._sent += len(values)
                if self._sent - self._tally.count > MOST_UNDER_WAY:
                    self._await_threads()

    def settle(self) -> None:
        """Return when all logged values are on disk, and in online mode acknowledged by the server."""
        self._await_threads()
        self._store.check()
        self._store.ensure_flushed()
        self._sync()
        deadline = time.monotonic() + TAKE_SECONDS
        while self._is_online:
            stats = self._run._core.get_operation_stats().stats
            if stats.uploaded_records >= stats.total_records:
                break
            if time.monotonic() > deadline:
                raise SinkError(
                    f"SwanLab's server has acknowledged {stats.uploaded_records} of {stats.total_records} records"
                )
            time.sleep(0.1)

    def finish(self) -> None:
        self._run.finish()
        self._store.check()
        self._sync()

    def _sync(self) -> None:
        """Sync the files and their folders to disk."""
        folder = Path(self._run.dir)
        for path in folder.glob("*.swanlab"):
            sync_file(path)
        sync_folder(folder)
        sync_folder(folder.parent)

    def let_go(self) -> None:
        """End the run without waiting for a network or a disk that does not respond."""
        end_aside([partial(self._run.finish, state="aborted")], LETTING_GO_SECONDS)

    def _await_threads(self) -> None:
        """Wait until SwanLab's writer has all logged values: SwanLab passes them from thread to thread."""
        with self._tally.changed:
            done = self._tally.changed.wait_for(lambda: self._tally.count >= self._sent, TAKE_SECONDS)
        if not done:
            raise SinkError(f"SwanLab has accepted {self._tally.count} of {self._sent} values in {TAKE_SECONDS:.0f} s")

    def _values(self, item: SinkRow) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in [*item.row.numbers.items(), *item.row.texts.items()]:
            is_text = isinstance(value, str)
            key = _metric_key(metric_name(item.stream, name))
            if self._is_text.setdefault(key, is_text) != is_text:
                # SwanLab drops values of another kind than the metric's first value.
                key += "/text" if is_text else "/number"
            values[key] = self._swanlab.Text(value) if is_text else value
        return values


class _WatchedStore:
    """Wraps SwanLab's file writer. It keeps the writer's errors, such as a full disk, which SwanLab ignores, and gives
    access to its flush, which is not public.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._error: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, data: bytes) -> None:
        with ExitStack() as leaving:
            leaving.push(self._note)
            self._store.write(data)

    def _note(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._error = self._error or error

    def check(self) -> None:
        if self._error is not None:
            raise SinkError(f"SwanLab could not write its file: {self._error}") from self._error


def _new_tally(swanlab: Any) -> Any:
    """A SwanLab callback that counts the values that its writer has received."""

    class Tally(swanlab.Callback):  # type: ignore[misc]
        name = "rlvitals"

        def __init__(self) -> None:
            self.count = 0
            self.changed = threading.Condition()

        def on_scalar_flush(self, scalar_records: list[Any], *_: Any, **__: Any) -> None:
            self._add(len(scalar_records))

        def on_media_flush(self, media_records: list[Any], *_: Any, **__: Any) -> None:
            self._add(len(media_records))

        def _add(self, count: int) -> None:
            with self.changed:
                self.count += count
                self.changed.notify_all()

    return Tally()


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """SwanLab's settings: no prompts, no copy of the terminal output, no data about the host. The user's settings
    override them.
    """
    probes = ("hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor")
    options: dict[str, Any] = {
        "interactive": False,
        "terminal": {"proxy_type": "none"},
        "probe": dict.fromkeys(probes, False),
    }
    for key, value in given.items():
        options[key] = {**options.get(key, {}), **value} if isinstance(value, Mapping) else value
    return options


def _metric_key(name: str) -> str:
    """The name in the form that SwanLab stores. SwanLab drops values with an invalid name.

    >>> _metric_key("/rewards/margins."), _metric_key("..."), _metric_key("__swanlab__.x")
    ('rewards/margins', 'metric', 'metric/__swanlab__.x')
    """
    key = re.sub(r"[\x00-\x1f\x7f]", "_", name).strip(" ./")[:500].strip(" ./") or "metric"
    return f"metric/{key}" if key.startswith("__swanlab__") else key
