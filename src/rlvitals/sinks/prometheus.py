"""Prometheus, for a run without a server: a text file for the node exporter's textfile collector.

The file holds the current state of the run. After each batch of rows or findings it is rewritten and replaced
atomically, so the node exporter never reads half a file. It has no history, so nothing can be sent twice.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rlvitals.errors import SinkError
from rlvitals.gauges import RunGauges
from rlvitals.render.prometheus import run_text
from rlvitals.sinks.base import RunFacts, Sink, SinkEvent, SinkRow, check_settings
from rlvitals.store.files import put_file
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import is_recorded

ENDING = ".prom"
"""The suffix of files that the node exporter reads; it ignores other names."""

_ODD = re.compile(r"[^\w.+=@-]+")


class PrometheusSink(Sink):
    """Writes to `path`: a file whose name ends in `.prom`, or the collector's folder, in which each run gets its own
    file. `project` is the value of the label `project`; the default is the name of the folder that holds the run. With
    `remove_at_end` the file is removed when the run has finished; after a failure or an interruption it stays.
    """

    known_settings: ClassVar[frozenset[str] | None] = frozenset({"path", "project", "remove_at_end"})
    path_settings: ClassVar[frozenset[str]] = frozenset({"path"})
    takes_findings: ClassVar[bool] = True

    def __init__(self, facts: RunFacts, settings: Mapping[str, Any], memory: dict[str, Any]) -> None:
        super().__init__(facts, settings, memory)
        check_settings("prometheus", settings, self.known_settings or frozenset())
        given = settings.get("path")
        if not given:
            raise SinkError(
                "tracker 'prometheus' needs path: the folder that the node exporter reads "
                "(--collector.textfile.directory), or a file there whose name ends in .prom"
            )
        project = str(settings.get("project") or facts.root.parent.name)
        self._path = text_file(Path(str(given)), project, facts.root.name)
        self._gauges = RunGauges(facts.root, facts.root.name, project)

    def write(self, rows: Sequence[SinkRow]) -> None:
        """Do nothing: `commit` reads the state of the run."""

    def tell(self, events: Sequence[SinkEvent]) -> None:
        """Do nothing: `commit` reads the state of the run."""

    def commit(self) -> None:
        text = run_text([self._gauges.look()])
        try:
            put_file(self._path, text.encode())
        except OSError as error:
            raise SinkError(
                f"cannot write {self._path}: {error.strerror or error}. The node exporter's folder must be writable "
                "for the user that trains"
            ) from error

    def close(self) -> None:
        """Write the final state of the run, or remove the file if `remove_at_end` is set."""
        is_over = not is_recorded(RunDir(self.facts.root))
        if is_over and self.settings.get("remove_at_end") and self._gauges.look().status == "finished":
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        else:
            self.commit()


def text_file(given: Path, project: str, run: str) -> Path:
    """The file of a run: the given file, or a separate file in the given folder.

    >>> text_file(Path("/textfile"), "out", "kto 7b").as_posix()
    '/textfile/rlvitals-out-kto_7b.prom'
    >>> text_file(Path("/textfile/kto.prom"), "out", "kto 7b").as_posix()
    '/textfile/kto.prom'
    """
    return given if given.name.endswith(ENDING) else given / f"rlvitals-{_ODD.sub('_', f'{project}-{run}')}{ENDING}"
