"""Entry points through which other packages add to rlvitals.

| group | what an entry point names |
|---|---|
| `rlvitals.catalog` | a mapping in the catalogue's form, a list of them, or a path to a YAML or JSON file |
| `rlvitals.sinks` | a tracker, by the name used in `track_with` |
| `rlvitals.importers` | a reader of another tool's log |
| `rlvitals.rules` | a health rule file |

In the other package's pyproject.toml: `[project.entry-points."rlvitals.catalog"]`, then `mypkg =
"mypkg.metrics:CATALOG"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

Group = Literal["catalog", "sinks", "importers", "rules"]


def names(group: Group) -> list[str]:
    """The names other packages have registered in a group."""
    from importlib.metadata import entry_points

    return [entry.name for entry in entry_points(group=f"rlvitals.{group}")]


def load(group: Group) -> Iterator[tuple[str, Any]]:
    """Import and yield what other packages have registered, with the name for error messages."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=f"rlvitals.{group}"):
        yield f"{entry.value} (plug-in {entry.name!r})", entry.load()
