"""Readers of the logs that other tools write.

`read_log(path)` returns the rows, settings and remarks of a log in any known format. `LogTail` follows a log that still
grows. A format is one class, an `Importer` or a `LineImporter`, listed in `registry`. Other packages add formats with
the entry point group `rlvitals.importers`.
"""

from rlvitals.errors import NotALog
from rlvitals.importers.base import ForeignLog, Importer, LineImporter, text_in
from rlvitals.importers.folders import is_plainly_other
from rlvitals.importers.registry import (
    find_log,
    importer_for,
    is_one_log,
    local_or_log,
    logs_below,
    not_a_log,
    read_log,
    split_choice,
)
from rlvitals.importers.tail import Growth, LogTail

__all__ = [
    "ForeignLog",
    "Growth",
    "Importer",
    "LineImporter",
    "LogTail",
    "NotALog",
    "find_log",
    "importer_for",
    "is_one_log",
    "is_plainly_other",
    "local_or_log",
    "logs_below",
    "not_a_log",
    "read_log",
    "split_choice",
    "text_in",
]
