"""A run or a log that is judged while it may still grow: its rows as they come, and the judge of the rows so far."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Unpack

from rlvitals.store.layout import as_named
from rlvitals.views.feeds import Feed, News, open_feed
from rlvitals.views.judge import Judge
from rlvitals.views.sources import Known, RowSource, new_monitor


class Following:
    """One run or log. `known` is what the user passes about it, as for `check`."""

    def __init__(self, path: Path, **known: Unpack[Known]) -> None:
        self._named, self._kept = path, path.absolute()
        self._known = known
        self.feed: Feed = open_feed(path)
        self.last_row_at = time.monotonic()
        """When the last row came."""
        self.start_again(None)

    @property
    def path(self) -> Path:
        """The path as given, or the absolute path if the working directory has changed."""
        return as_named(self._named, self._kept)

    @property
    def rows(self) -> int:
        """Training rows of the living line: the number that every list and page shows."""
        return self.feed.counted.rows

    def poll_feed(self) -> tuple[News, str]:
        """What is new, and why nothing more will come; empty if more may come."""
        if not self.judge.points:  # without rows, the path may have become a run
            self.feed = open_feed(self.path, self.feed)
        ending = self.feed.ending  # read before the poll, so that the poll reads all rows up to the end
        return self.feed.poll(), ending

    def source_for(self, news: News) -> RowSource | None:
        """The source, if judging starts again with these rows: with the first rows, before which the settings of a log
        are unknown, or because earlier rows are no longer valid.
        """
        is_new = news.before is not None or (bool(news.rows) and not self.judge.points)
        return self.feed.source() if is_new else None

    def start_again(self, source: RowSource | None) -> None:
        """Forget the rows so far."""
        self.judge = Judge(new_monitor(source, **self._known))
