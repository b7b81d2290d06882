"""Readers of the logs other tools write.

`read_log(path)` gives rows, settings and remarks of any log it knows; `sniff` tells the format; `LogTail` follows one
that still grows. A format is one small module; `detect` knows them by their content, `reading` feeds them.
"""

from rlvitals.store.importers.base import ForeignLog, NotALog
from rlvitals.store.importers.detect import sniff
from rlvitals.store.importers.reading import read_log
from rlvitals.store.importers.tail import LogTail, follow_log

__all__ = ["ForeignLog", "LogTail", "NotALog", "follow_log", "read_log", "sniff"]
