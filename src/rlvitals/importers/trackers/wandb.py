"""Weights & Biases: runs of a server, through the public API of the `wandb` package.

`scan_history` returns the history in pages and not downsampled, from the step where the last import ended. W&B returns
samples of the machine only downsampled.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rlvitals.errors import NotALog, SourceError
from rlvitals.guard import guarded
from rlvitals.importers.cells import time_of
from rlvitals.importers.dumps.base import document
from rlvitals.importers.dumps.trl import table_rows
from rlvitals.importers.trackers.address import Address
from rlvitals.importers.trackers.base import (
    Origin,
    Page,
    RemoteRun,
    RunCard,
    Source,
    chain,
    client_module,
    mark_of,
    status_of,
    utc_time,
    without_nothing,
)
from rlvitals.importers.trackers.rows import RowMaker, are_completions, groups_of
from rlvitals.importers.wandb import histograms_in, without_media
from rlvitals.records import MAX_STEP, SAMPLE_AXIS, Group, Row, Status
from rlvitals.store.distributions import Logged

ROWS_A_PAGE = 1_000
STEPS_A_PAGE = 1_000_000
"""The client pages by steps. If steps count tokens, smaller pages would hold about one row each."""

MOST_SAMPLES = 10_000
"""How many samples of the machine are requested. W&B downsamples to this number."""

_STATUS: dict[str, Status] = {
    "running": "running", "pending": "running", "preempting": "running", "finished": "finished", "failed": "failed",
    "crashed": "failed",
}  # fmt: skip
MOST_TABLE_BYTES = 64 * 2**20

_OWN = frozenset({"_step", "_timestamp", "_runtime", "_wandb"})


class WandbSource(Source):
    """A W&B project, or a run of it."""

    scheme = "wandb"
    grammar = (
        "wandb:ENTITY/PROJECT or wandb:ENTITY/PROJECT/RUN, with the run's id; a server of your own in WANDB_BASE_URL "
        "or in front: wandb:https://HOST#ENTITY/PROJECT"
    )
    login = "Log in with 'wandb login', or set WANDB_API_KEY; for a server of your own set WANDB_BASE_URL, too."
    goes_on = True

    def __init__(self, address: Address, tell: Callable[[str], None] = lambda message: None) -> None:
        super().__init__(address, tell)
        parts = address.path.split("/")
        if not all(parts) or not 1 <= len(parts) <= 3:
            raise self.wrong_address()
        self._undo = ExitStack()
        self._lost_tables = 0
        os.environ.setdefault("WANDB_SILENT", "true")
        if "WANDB_DIR" not in os.environ:  # the client creates a folder for each run it lists
            folder = self._undo.enter_context(tempfile.TemporaryDirectory(prefix="rlvitals-"))
            os.environ["WANDB_DIR"] = folder
            self._undo.callback(os.environ.pop, "WANDB_DIR", None)
        wandb = client_module("wandb", self.scheme)
        overrides = {"base_url": address.place} if address.place else {}
        self._refuse_without_login(wandb, address.place)
        self._api = self.ask(lambda: wandb.Api(overrides=overrides), "the server")
        if len(parts) == 1:
            parts = [self.ask(lambda: self._api.default_entity, "the default entity") or "", *parts]
        self._project, self._wanted = "/".join(parts[:2]), parts[2] if len(parts) == 3 else ""

    @property
    def is_one_run(self) -> bool:
        return bool(self._wanted)

    def runs(self) -> Iterator[RemoteRun]:
        if self._wanted:
            yield self._remote(self.ask(lambda: self._api.run(f"{self._project}/{self._wanted}"), "the run"))
            return
        listed = iter(self.ask(lambda: self._api.runs(self._project, order="+created_at"), "the list of runs"))
        while (run := self.ask(lambda: next(listed, None), "the list of runs")) is not None:
            yield self._remote(run)

    def card(self, run: RemoteRun) -> RunCard:
        found = run.handle
        config = self.ask(lambda: dict(found.config), "the settings")
        summary = self.ask(lambda: dict(found.summary_metrics), "the summary")
        facts = {name: getattr(found, name, None) for name in ("state", "group", "job_type", "sweep_name", "commit")}
        return RunCard(
            config={name: value for name, value in config.items() if not name.startswith("_") and name != "rlvitals"},
            tags=[str(tag) for tag in getattr(found, "tags", None) or []],
            note=str(getattr(found, "notes", None) or ""),
            summary={name: value for name, value in without_media(summary).items() if name not in _OWN},
            facts=without_nothing(facts),
        )

    def pages(self, run: RemoteRun, cursor: dict[str, Any]) -> Iterator[Page]:
        maker = RowMaker(self.scheme, cursor.get("rows"), is_ours=run.origin is not None)
        begin = cursor.get("next", 0)
        self._lost_tables = 0
        rows: list[Row] = []
        ours: list[Row] = []
        distributions: list[Logged] = []
        groups: list[Group] = []
        place = begin
        scan = self.ask(lambda: self._scan(run, begin), "the history")
        while (record := self.ask(lambda: next(scan, None), "the history")) is not None:
            counter = record.get("_step")
            if type(counter) is not int or abs(counter) > MAX_STEP or counter < place:
                continue  # W&B's step only grows; the client may return a row twice, exported and live
            logged = {name: value for name, value in without_media(record).items() if name not in _OWN}
            moment = record.get("_timestamp")
            is_sample = run.origin is not None and SAMPLE_AXIS in logged
            row = maker.sample(logged, time_of(moment)) if is_sample else maker.row(logged, counter, moment)
            (ours if is_sample else rows).extend([row] if row else [])
            distributions += histograms_in(record, row.step if row else counter)
            groups += self._rollouts(run, record, row.step if row else counter)
            place = counter + 1
            if len(rows) >= ROWS_A_PAGE:
                cursor = {**cursor, "next": place, "rows": maker.memory()}
                yield Page(rows, ours, distributions, groups, cursor)
                rows, ours, distributions, groups = [], [], [], []
        samples, sampled = self._samples(run, maker, cursor.get("sampled", 0.0))
        self.notes = dict.fromkeys(maker.notes.texts())
        if self._lost_tables:
            self.notes[f"{self._lost_tables} tables of completions could not be read"] = None
        if samples:
            self.notes["W&B gives samples of the machine thinned"] = None
        yield Page(
            rows, [*ours, *samples], distributions, groups, {"next": place, "sampled": sampled, "rows": maker.memory()}
        )

    def close(self) -> None:
        self._undo.close()

    def may_pass(self, error: Exception) -> bool:
        """Whether an error is temporary. W&B's client retries by itself, but timeouts and overload may still end."""
        return super().may_pass(error) or any("timed out" in str(one).lower() for one in chain(error))

    def needs_login(self, error: Exception) -> bool:
        names = {type(one).__name__ for one in chain(error)}
        return bool(names & {"AuthenticationError", "UsageError"}) or status_of(error) == 401

    def _refuse_without_login(self, wandb: Any, place: str) -> None:
        """Raise SourceError if there is no login; the client would ask for a key on the terminal."""
        with guarded(but=(SourceError,)):  # private functions differ between versions; on failure the client asks
            found = wandb.sdk.lib.wbauth.authenticate_session(
                host=place or wandb.env.get_base_url(wandb.setup().settings.base_url),
                source="rlvitals import",
                prompt=False,
                update_session=False,
            )
            if found is None:
                raise SourceError(f"{self.address}: there is no login for W&B. {self.login}")

    def _scan(self, run: RemoteRun, begin: int) -> Any:
        rows = getattr(run.handle, "historyLineCount", None) or 0
        last = run.handle.lastHistoryStep
        steps = max(1, last + 1 - begin) / max(1, rows)
        size = int(min(max(ROWS_A_PAGE, ROWS_A_PAGE * steps), STEPS_A_PAGE))
        return run.handle.scan_history(min_step=begin, page_size=size, use_cache=False)

    def _samples(self, run: RemoteRun, maker: RowMaker, since: float) -> tuple[list[Row], float]:
        found = self.ask(
            lambda: run.handle.history(stream="system", samples=MOST_SAMPLES, pandas=False), "samples of the machine"
        )
        samples = []
        for record in found:
            moment = time_of(record.get("_timestamp"))
            row = maker.sample({name: value for name, value in record.items() if name not in _OWN}, moment)
            if row is not None and moment is not None and moment > since:
                samples.append(row)
        return samples, max((row.timestamp for row in samples), default=since)

    def _rollouts(self, run: RemoteRun, record: dict[str, Any], step: int) -> list[Group]:
        """The rollouts in tables of completions, which W&B stores as files. Unreadable tables are counted."""
        found: list[Group] = []
        for name, value in record.items():
            if not isinstance(value, dict) or value.get("_type") != "table-file" or not are_completions(name):
                continue
            path, size = value.get("path"), value.get("size", 0)
            if isinstance(path, str) and isinstance(size, int) and size <= MOST_TABLE_BYTES:
                try:
                    found += groups_of(self._table(run, path), step)
                except (SourceError, NotALog):
                    self._lost_tables += 1
        return found

    def _table(self, run: RemoteRun, path: str) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory(prefix="rlvitals-") as name:
            folder = Path(name).resolve()
            file = (folder / path).resolve()
            if not file.is_relative_to(folder):  # the name comes from the server
                raise SourceError(f"{path!r} is not a name of a file")
            self.ask(lambda: run.handle.file(path).download(root=name, replace=True).close(), f"the table {path}")
            return list(table_rows(document(file)))

    def _remote(self, run: Any) -> RemoteRun:
        facts = {
            name: getattr(run, name, None) for name in ("state", "historyLineCount", "heartbeatAt", "tags", "notes")
        }
        # rlvitals gives forwarded runs such names. The settings of other runs are not requested yet.
        is_ours = bool(getattr(run, "group", None)) and re.search(r"-a\d+$", run.id) is not None
        config = self.ask(lambda: run.config, "the settings") if is_ours else None
        return RemoteRun(
            id=run.id,
            name=run.name or run.id,
            project=self._project,
            status=_STATUS.get(run.state, "interrupted"),
            mark=mark_of([run.name, facts]),
            created=utc_time(getattr(run, "created_at", None)),
            ended=utc_time(getattr(run, "heartbeatAt", None)),
            within=self._project,
            origin=Origin.of(config.get("rlvitals")) if isinstance(config, dict) else None,
            handle=run,
        )
