"""`rlvitals env`: the information a bug report needs, without private data."""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from typing import Any

from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.terminal import say
from rlvitals.version import __version__

QUERY = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    facts: dict[str, Any] = {
        "rlvitals": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "gpu": gpus(),
        "terminal": f"{sys.stdout.encoding}, {'a terminal' if sys.stdout.isatty() else 'no terminal'}",
        "packages": packages(),
    }
    if arguments.json:
        print_json(facts)
        return 0
    for name in ("rlvitals", "python", "system", "terminal"):
        say(f"{name:<9} {facts[name]}")
    say(f"{'gpu':<9} {'; '.join(facts['gpu']) or 'none that nvidia-smi shows'}")
    for extra, found in facts["packages"].items():
        versions = (f"{name} {version}" if version else f"{name} not installed" for name, version in found.items())
        say(f"{extra:<17} {', '.join(versions)}")
    return 0


def packages() -> dict[str, dict[str, str | None]]:
    """Extra -> its packages -> the installed version, or None. `base` holds the packages that rlvitals always needs."""
    found: dict[str, dict[str, str | None]] = {}
    for line in metadata.requires("rlvitals") or []:
        requirement, _, condition = line.partition(";")
        name = _NAME.match(requirement)
        extra = re.search(r"extra == ['\"]([^'\"]+)", condition)
        group = extra[1] if extra else "base"
        if name is not None and name[0] != "rlvitals" and group != "all":
            found.setdefault(group, {})[name[0]] = _version(name[0])
    return found


def gpus() -> list[str]:
    """Name, memory and driver of each GPU, as nvidia-smi prints them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        output = subprocess.run([tool, *QUERY], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in output.splitlines() if line.strip()]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
