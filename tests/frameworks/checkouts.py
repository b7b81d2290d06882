"""Frameworks that are not packages: their source comes from a local checkout.

`RLVITALS_SOURCES` names a folder with checkouts called `prime-rl`, `slime`, `miles`, `RL` (NeMo-RL) and `ROLL`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def use(name, *folders):
    """Put a checkout's folders on the path; returns its commit. Skips the module if there is no checkout."""
    sources = os.environ.get("RLVITALS_SOURCES")
    root = Path(sources or "/nowhere") / name
    if not root.is_dir():
        pytest.skip(f"no checkout of {name}: set RLVITALS_SOURCES to the folder that has it", allow_module_level=True)
    sys.path[:0] = [str(root / folder) for folder in folders or (".",)]
    head = root / "COMMIT"
    if head.is_file():
        return head.read_text(encoding="utf-8").strip()
    found = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def roots(*names):
    """The folders of checkouts, for the path of other processes."""
    return [Path(os.environ["RLVITALS_SOURCES"]) / name for name in names]
