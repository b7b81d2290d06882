"""Trackio: one run for each attempt, all in one group of the project.

A crash of the follower leaves no duplicates: every row has an id, made of the run and its position in the log, and
Trackio's database stores an id once. A resume opens a second run, "NAME (attempt 2)", in the same group; superseded
rows stay in the first one.

Trackio's own `log` puts rows into a queue and loses them if the process dies. So rows are written directly to its
storage (`SQLiteStorage.bulk_log`, as its own sender does, or JSONL fragments if Trackio does not use SQLite, as on
network disks). With `space_id` or `server_url` they are sent to the server's `/bulk_log`, which answers when it has
stored them. `trackio.init` is called only for a Space or server, or for `auto_log_gpu` and `auto_log_cpu`, which are
off by default. TRACKIO_DIR sets the folder of the local files.

Hardware samples are Trackio's system metrics, on a time axis.

Trackio stores float64, NaN and both infinities, texts, every row of a step, and (locally) the row's own time. Names
that it reserves (`time`, `run`, `project`, `metrics`) get its prefix `__`. It has no tags; they are stored in the run's
config.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

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
)
from rlvitals.store.files import sync_file
from rlvitals.terminal import warn

OWN_CHOICES = frozenset({"resume", "settings", "embed"})
"""Parameters of `trackio.init` that this sink sets itself or does not use."""

SPEAKERS = ("trackio", "trackio.run", "trackio.deploy", "trackio.utils")
"""Trackio's modules that print; no setting turns this off. Some print from threads, so redirecting stdout would also
redirect the output of other code.
"""

MONITORS = ("auto_log_gpu", "auto_log_cpu")


class TrackioSink(Sink):
    """Forwards to Trackio, local or remote. Owns the ids of its rows."""

    takes_samples: ClassVar[bool] = True

    def __init__(self, facts: RunFacts, settings: Mapping[str, Any], memory: dict[str, Any]) -> None:
        super().__init__(facts, settings, memory)
        trackio = import_vendor("trackio", "trackio")
        known = frozenset(inspect.signature(trackio.init).parameters) | {"tags"}
        check_settings("trackio", settings, known - OWN_CHOICES)
        for module in SPEAKERS:
            vars(import_vendor(module, "trackio"))["print"] = _print_to_stderr
        self._utils = import_vendor("trackio.utils", "trackio")
        self._storage = import_vendor("trackio.sqlite_storage", "trackio").SQLiteStorage
        self._project = str(settings.get("project") or "rlvitals")
        self._name = str(settings.get("name") or facts.name)
        self._places: dict[str, int] = dict(memory.get("places", {}))
        """Number of stored rows of each stream, which is the position of the next row in its log."""
        self._taken: list[SinkRow] = []
        self._described: set[int] = set()
        """Attempts whose config was sent."""
        self._run: Any = None
        self._client: Any = None
        with explained(
            lambda problem: (
                f"Trackio cannot start: {problem}. A Space needs a Hugging Face token (hf auth login, or "
                "HF_TOKEN); your own server needs its write token in server_url or TRACKIO_WRITE_TOKEN."
            )
        ):
            self._storage.validate_project_name(self._project)
            self._start(trackio)

    def write(self, rows: Sequence[SinkRow]) -> None:
        self._taken.extend(rows)

    def commit(self) -> None:
        places = dict(self._places)
        entries: list[dict[str, Any]] = []
        samples: list[dict[str, Any]] = []
        for item in self._taken:
            place = places.get(item.stream, 0)
            places[item.stream] = place + 1
            kept = samples if item.stream == "system" else entries
            kept.append(self._entry(item, f"{self.facts.id}:{item.stream}:{place}"))
        described = {entry["attempt"] for entry in entries} - self._described
        for attempt in described:
            first = next(entry for entry in entries if entry["attempt"] == attempt)
            first["config"] = self._config(attempt)
        for attempt in sorted({entry.pop("attempt") for entry in entries}):
            self._send([entry for entry in entries if entry["run_id"] == self._run_id(attempt)], "rows")
        for attempt in sorted({entry.pop("attempt") for entry in samples}):
            self._send([entry for entry in samples if entry["run_id"] == self._run_id(attempt)], "samples")
        self._taken = []
        self._places = places
        self._described |= described
        self.memory = {"places": dict(places)}

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def abandon(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            end_aside([run.finish], 0.0)  # Trackio waits for its threads for half a minute

    def _start(self, trackio: Any) -> None:
        """Call `trackio.init` if it is needed, and connect to the server if there is one."""
        space, server = self._utils.resolve_space_id_and_server_url(
            self.settings.get("space_id"), self.settings.get("server_url")
        )
        if space or server or any(self.settings.get(monitor) for monitor in MONITORS):
            given = {key: value for key, value in self.settings.items() if key not in ("tags", "config")}
            attempt = self.facts.attempts[-1].number if self.facts.attempts else 1
            given |= {"project": self._project, "name": self._run_name(attempt), "group": self._group, "embed": False}
            self._run = trackio.init(**{**dict.fromkeys(MONITORS, False), **given})
            self._run.id = self._run_id(attempt)
        if space or server:
            self._token = import_vendor("huggingface_hub", "trackio").get_token() if space else None
            base, token = self._utils.parse_trackio_server_url(server) if server else (space, None)
            self._client = import_vendor("trackio.remote_client", "trackio").RemoteClient(
                base, hf_token=self._token, write_token=token or os.environ.get("TRACKIO_WRITE_TOKEN")
            )

    def _send(self, entries: list[dict[str, Any]], kind: Literal["rows", "samples"]) -> None:
        """Store rows or hardware samples of one attempt. Trackio has a separate table for samples, on a time axis."""
        are_samples = kind == "samples"
        if are_samples:
            for entry in entries:
                del entry["step"], entry["config"]
        if self._client is not None:
            name = "/bulk_log_system" if are_samples else "/bulk_log"
            self._client.predict(api_name=name, logs=entries, hf_token=self._token)
        elif self._utils.get_storage_mode() == "jsonl":
            fragments = import_vendor("trackio.fragments", "trackio")
            record = fragments.system_metric_record if are_samples else fragments.metric_record
            sync_file(fragments.FragmentWriter().write_local([record(entry) for entry in entries]))
        else:
            columns = {
                "metrics_list": [entry["metrics"] for entry in entries],
                "timestamps": [entry["timestamp"] for entry in entries],
                "log_ids": [entry["log_id"] for entry in entries],
            }
            if not are_samples:
                columns |= {"steps": [entry["step"] for entry in entries], "config": entries[0]["config"]}
            log = self._storage.bulk_log_system if are_samples else self._storage.bulk_log
            log(project=self._project, run=entries[0]["run"], run_id=entries[0]["run_id"], **columns)
            self._sync_database()

    def _sync_database(self) -> None:
        database = Path(self._storage.get_project_db_path(self._project))
        for path in (database.with_name(f"{database.name}-wal"), database):
            with contextlib.suppress(FileNotFoundError):
                sync_file(path)

    def _entry(self, item: SinkRow, log_id: str) -> dict[str, Any]:
        row = item.row
        return {
            "attempt": row.attempt,
            "project": self._project,
            "run": self._run_name(row.attempt),
            "run_id": self._run_id(row.attempt),
            "metrics": self._utils.serialize_values(self._metrics(item)),
            "step": row.step,
            "timestamp": _iso(row.timestamp),
            "config": None,
            "log_id": log_id,
        }

    def _metrics(self, item: SinkRow) -> dict[str, float | str]:
        metrics: dict[str, float | str] = {}
        given: dict[str, float | str] = {**item.row.numbers, **item.row.texts}
        for name, value in given.items():
            key = metric_name(item.stream, name)
            metrics[f"__{key}" if key in self._utils.RESERVED_KEYS or key.startswith("__") else key] = value
        return metrics

    def _config(self, attempt: int) -> dict[str, Any]:
        """The attempt's config. Trackio reserves names with a leading `_`, such as the last two."""
        record = self.facts.attempt(attempt)
        config = {**self.facts.config, **(self.settings.get("config") or {})}
        config = {key.lstrip("_") or "value": value for key, value in config.items()}
        if self.settings.get("tags"):
            config["tags"] = list(self.settings["tags"])
        config["rlvitals"] = self.facts.about(attempt)
        created = _iso(record.started if record else math.nan)
        return {**self._utils.serialize_values(config), "_Created": created, "_Group": self._group}

    @property
    def _group(self) -> str:
        return str(self.settings.get("group") or self._name)

    def _run_name(self, attempt: int) -> str:
        return attempt_name(self._name, attempt)

    def _run_id(self, attempt: int) -> str:
        return f"{self.facts.id}-{attempt}"


def _iso(timestamp: float) -> str:
    try:
        return datetime.fromtimestamp(timestamp, UTC).isoformat()
    except (ValueError, OverflowError, OSError):  # no time, or an impossible one
        return datetime.now(UTC).isoformat()


def _print_to_stderr(*words: object, **how: object) -> None:
    """Replaces `print` in Trackio: writes to stderr, because the text contains names of projects and runs."""
    warn(" ".join(map(str, words)))
