"""The rows that a reader of `LogTail` knows after each poll."""

from __future__ import annotations

from typing import Any

from rlvitals.importers import Growth


def with_growth(rows: list[dict[str, Any]], growth: Growth) -> list[dict[str, Any]]:
    """The rows known so far, updated with the result of one more poll."""
    return [*(rows if growth.before is None else growth.before), *growth.rows]
