"""The parser of every verb's flags, and flags that several verbs share. Its output repeats what the user typed, so
`rlvitals.terminal` prints it.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rlvitals.errors import ConfigError
from rlvitals.terminal import put


class Parser(argparse.ArgumentParser):
    """argparse's parser, with help, usage and errors printed by `rlvitals.terminal`."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            put(message.removesuffix("\n"), file or sys.stderr)


def add_judge_flags(parser: argparse.ArgumentParser) -> None:
    """`--rules` and `--algorithm`, which choose the rules that judge a run."""
    parser.add_argument(
        "--rules", action="append", metavar="RULES",
        help="a preset, a rule file, or a rule such as 'kl > 0.5 for 5: warning' (repeatable; default: those "
        "the run was recorded with; 'default': the shipped rules)",
    )  # fmt: skip
    parser.add_argument("--algorithm", help="grpo, ppo, kto, dpo, ... (default: inferred from the metric names)")


def add_map_flag(parser: argparse.ArgumentParser) -> None:
    """`--map NAME=CONCEPT`, see `mapping_from`."""
    parser.add_argument(
        "--map", action="append", metavar="NAME=CONCEPT", default=[],
        help="the concept of a metric name, such as my_name=reward.total.mean; 'none' ignores it (repeatable)",
    )  # fmt: skip


def add_interval_flag(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """`--interval`, see `check_polling`."""
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="how often to read the log (default: 1)"
    )


def check_polling(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for an `--interval` or `--until-idle` that is not above 0."""
    if arguments.interval <= 0 or (arguments.until_idle is not None and arguments.until_idle <= 0):
        raise ConfigError("--interval and --until-idle are seconds above 0")


def mapping_from(words: list[str]) -> dict[str, str]:
    """The concepts of names, from the command line. The last `=` separates them, because a name may contain one.

    >>> mapping_from(["my_name=reward.total.mean"])
    {'my_name': 'reward.total.mean'}
    """
    mapping = {}
    for word in words:
        name, equals, concept = word.rpartition("=")
        if not name.strip() or not equals or not concept.strip():
            raise ConfigError(f"--map {word}: write NAME=CONCEPT, as in --map my_name=reward.total.mean")
        mapping[name.strip()] = concept.strip()
    return mapping
