"""`rlvitals skill [--install [DIR]]`: the guide for coding agents."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlvitals.agents.skill import FOLDER, install, place_in, skill_text
from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.errors import ConfigError
from rlvitals.terminal import put, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--install", nargs="?", const=str(FOLDER), metavar="DIR",
        help=f"write it to rlvitals/SKILL.md in a folder of skills (default: {place_in(FOLDER)} here)",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="also replace a file that was changed")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.install is None:
        if arguments.force:
            raise ConfigError("--force is for --install")
        print_json({"skill": skill_text()}) if arguments.json else put(skill_text().removesuffix("\n"))
        return 0
    place, is_written = install(Path(arguments.install).expanduser(), force=arguments.force)
    if arguments.json:
        print_json({"file": str(place), "written": is_written})
    else:
        say(f"{place} was written." if is_written else f"{place} is up to date.")
    return 0
