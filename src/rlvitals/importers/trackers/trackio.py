"""Trackio: projects on this machine, on a private server or in a Space, through Trackio's read-only SQL.

The package is used for both: `SQLiteStorage.query_project` locally, `/query_project` on a server. Its other functions
downsample to a few thousand rows. Rows are read in the order of their ids, and the next import continues after the last
id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from rlvitals.errors import SourceError
from rlvitals.importers.cells import time_of
from rlvitals.importers.jsonl import object_in
from rlvitals.importers.trackers.base import (
    PAGE_ROWS,
    Origin,
    Page,
    RemoteRun,
    RunCard,
    Source,
    client_module,
    without_nothing,
)
from rlvitals.importers.trackers.rows import RowMaker

_PREFIXED = re.compile(r"__(time|run|project|metrics|timestamp|step|__.*)")
"""Trackio adds this prefix to logged names that it reserves."""


class TrackioSource(Source):
    """A Trackio project, or a run of it."""

    scheme = "trackio"
    grammar = (
        "trackio:PROJECT or trackio:PROJECT/RUN, by name or id; with a server or a Space in front: "
        "trackio:http://localhost:7860#PROJECT, trackio:USER/SPACE#PROJECT"
    )
    login = "A private Space needs a Hugging Face token: log in with 'hf auth login', or set HF_TOKEN."
    goes_on = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        storage = client_module("trackio.sqlite_storage", self.scheme).SQLiteStorage
        self._project, _, self._wanted = self.address.path.partition("/")
        if not self._project:
            raise self.wrong_address()
        if self.address.place:
            token = client_module("huggingface_hub", self.scheme).get_token()
            remote = client_module("trackio.remote_client", self.scheme)
            client = self.ask(lambda: remote.RemoteClient(self.address.place, hf_token=token), "the server")
            self._query: Callable[[str], Any] = lambda query: client.predict(
                api_name="/query_project", project=self._project, query=query
            )
        else:
            self._query = lambda query: storage.query_project(self._project, query)
            known = self.ask(storage.get_projects, "the list of projects")
            if not storage.get_project_db_path(self._project).exists():
                raise SourceError(
                    f"{self.address}: there is no Trackio project {self._project!r} on this machine (projects: "
                    f"{', '.join(known[:10]) or 'none'}). TRACKIO_DIR says where they are; for a server write "
                    f"trackio:URL#{self._project}"
                )
        columns = {row["name"] for row in self._rows("PRAGMA table_info(metrics)")}
        self._key = "run_id" if "run_id" in columns else "run_name"
        """Older databases have only names."""
        tables = self._rows("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._tables = {row["name"] for row in tables}
        self._configs: dict[str, dict[str, Any]] = {}

    @property
    def is_one_run(self) -> bool:
        return bool(self._wanted)

    def runs(self) -> Iterator[RemoteRun]:
        held = "MIN(timestamp) AS created, MAX(timestamp) AS ended, COUNT(*) AS rows, MAX(id) AS newest"
        listed = self._listed("metrics", f"MAX(run_name) AS name, {held}", "GROUP BY id_")
        samples = {
            row["id_"]: row["newest"] for row in self._listed("system_metrics", "MAX(id) AS newest", "GROUP BY id_")
        }
        self._configs = {
            str(row["id_"]): object_in(str(row["config"])) or {} for row in self._listed("configs", "config")
        }
        if self._wanted:
            listed = [row for row in listed if row["id_"] == self._wanted] or [
                row for row in listed if row["name"] == self._wanted
            ]
            listed = sorted(listed, key=lambda row: str(row["created"]))[-1:]
            if not listed:
                raise SourceError(f"{self.address}: the project {self._project!r} has no run {self._wanted!r}")
        for row in sorted(listed, key=lambda row: str(row["created"])):
            yield RemoteRun(
                id=str(row["id_"]),
                name=str(row["name"] or row["id_"]),
                project=self._project,
                status="finished",  # Trackio does not say whether a run has ended
                mark=f"{row['rows']} {row['newest']} {samples.get(row['id_'], 0)}",
                created=time_of(row["created"]),
                ended=time_of(row["ended"]),
                within=self._project,
                origin=Origin.of(self._configs.get(str(row["id_"]), {}).get("rlvitals")),
            )

    def card(self, run: RemoteRun) -> RunCard:
        config = self._configs.get(run.id, {})
        tags = config.get("tags")
        facts = {"group": config.get("_Group"), "user": config.get("_Username"), "project": self._project}
        return RunCard(
            config={name: value for name, value in config.items() if not name.startswith("_") and name != "rlvitals"},
            tags=[str(tag) for tag in tags] if isinstance(tags, list) else [],
            facts=without_nothing(facts),
        )

    def pages(self, run: RemoteRun, cursor: dict[str, Any]) -> Iterator[Page]:
        maker = RowMaker(self.scheme, cursor.get("rows"), is_ours=run.origin is not None)
        place = {"metrics": cursor.get("metrics", 0), "system_metrics": cursor.get("system_metrics", 0)}
        for table in ("metrics", "system_metrics"):
            while table in self._tables:
                step = "step, " if table == "metrics" else ""
                found = self._rows(
                    f"SELECT id, {step}timestamp, metrics FROM {table} WHERE {self._key} = {_quoted(run.id)} "
                    f"AND id > {place[table]} ORDER BY id LIMIT {PAGE_ROWS}"
                )
                if found:
                    place[table] = found[-1]["id"]
                logged = [(_unprefixed(object_in(str(one["metrics"])) or {}), one) for one in found]
                if table == "metrics":
                    rows = [maker.row(record, one["step"], one["timestamp"]) for record, one in logged]
                    groups, maker.groups = maker.groups, []
                    kept = [row for row in rows if row]
                    page = Page(kept, groups=groups, cursor={**place, "rows": maker.memory()})
                else:
                    rows = [maker.sample(record, time_of(one["timestamp"])) for record, one in logged]
                    page = Page(samples=[row for row in rows if row], cursor={**place, "rows": maker.memory()})
                self.notes = dict.fromkeys(maker.notes.texts())
                yield page
                if len(found) < PAGE_ROWS:
                    break

    def _listed(self, table: str, columns: str, grouped: str = "") -> list[dict[str, Any]]:
        """A table's rows for all runs, read in pages, because a project may have more runs than an answer may have
        rows.
        """
        found: list[dict[str, Any]] = []
        while table in self._tables:
            after = f"WHERE {self._key} > {_quoted(found[-1]['id_'])}" if found else ""
            page = self._rows(
                f"SELECT {self._key} AS id_, {columns} FROM {table} {after} {grouped} ORDER BY id_ LIMIT {PAGE_ROWS}"
            )
            found += page
            if len(page) < PAGE_ROWS:
                break
        return found

    def _rows(self, query: str) -> list[dict[str, Any]]:
        answer = self.ask(lambda: self._query(query), f"the project {self._project!r}")
        rows = answer.get("rows") if isinstance(answer, dict) else None
        if not isinstance(rows, list):
            raise SourceError(f"{self.address}: the server gives no rows. It needs Trackio 0.20 or later")
        return rows


def _quoted(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _unprefixed(logged: dict[str, Any]) -> dict[str, Any]:
    return {name[2:] if _PREFIXED.fullmatch(name) else name: value for name, value in logged.items()}
