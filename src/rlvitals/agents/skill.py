"""The skill: a Markdown file that teaches a coding agent how to judge a run, and its installation for coding agents.

The last line of an installed file contains a hash of the lines above it. If the hash matches, nobody has changed the
file, and a new version replaces it. A changed file is not replaced.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from rlvitals.errors import ConfigError, explained
from rlvitals.store.files import put_file, read_whole
from rlvitals.version import __version__

SOURCE = Path(__file__).parent / "skill.md"
FOLDER = Path(".claude") / "skills"
"""The folder in which coding agents look for the skills of a project."""

_STAMP = re.compile(rb"\n<!-- rlvitals \S+ sha256:([0-9a-f]{64}) -->\n\Z")


def skill_text() -> str:
    """The text of the skill as it is shipped."""
    return SOURCE.read_text(encoding="utf-8")


def place_in(folder: Path) -> Path:
    """The skill's file in a folder of skills."""
    return folder / "rlvitals" / "SKILL.md"


def install(folder: Path, *, force: bool = False) -> tuple[Path, bool]:
    """Write the skill into a folder of skills. Returns the file and whether it was written (False: already there).
    Raises ConfigError if somebody changed the file, unless `force` is true.
    """
    place = place_in(folder)
    body = skill_text().encode()
    wanted = body + f"\n<!-- rlvitals {__version__} sha256:{hashlib.sha256(body).hexdigest()} -->\n".encode()
    with explained(f"cannot write {place}", ConfigError):
        found = read_whole(place) if place.exists() else None
        if found == wanted:
            return place, False
        if found is not None and not force and not is_untouched(found):
            raise ConfigError(f"{place} was changed and is left as it is; --force replaces it")
        put_file(place, wanted)
    return place, True


def is_untouched(found: bytes) -> bool:
    """Whether an installed file is unchanged since a version of rlvitals wrote it."""
    stamp = _STAMP.search(found)
    return stamp is not None and hashlib.sha256(found[: stamp.start()]).hexdigest().encode() == stamp[1]
