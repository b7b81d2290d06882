"""`rlvitals train grpo|kto|ppo|rlaif [CONFIG.yaml] [--setting value ...]`.

Flags and their help come from the trainer's recipe, so that each setting is defined once. The trainer's own module,
and torch with it, is imported after the flags are parsed.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from importlib import import_module
from typing import Any, NoReturn

from rlvitals.capture.identity import launched
from rlvitals.cli.flags import Parser
from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.errors import ConfigError, did_you_mean, needs
from rlvitals.terminal import put, say
from rlvitals.train import recipe

EXIT_FAILED = 1

TRAINERS = {
    "grpo": "an agent that searches a mailbox over several turns, by GRPO",
    "kto": "KTO on answers marked good or bad, with TRL's KTOTrainer",
    "ppo": "RLHF: supervised warm-up, reward model, PPO with a value head",
    "rlaif": "a student that writes code, scored by a teacher model or a deterministic judge",
}
"""Each is the module `rlvitals.train.NAME` with `Settings` and `train`, and the recipe `train/recipes/NAME.yaml`."""


class _Flags(Parser):
    """Flags without abbreviations. A wrong flag raises ConfigError: one line and exit code 64."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    width = max(map(len, TRAINERS))
    trainers = "\n".join(f"  {name:<{width}}  {what}" for name, what in TRAINERS.items())
    parser.usage = "rlvitals train TRAINER [CONFIG.yaml] [--setting value ...] [--print-config] [--json]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        f"trainers:\n{trainers}\n\n"
        "'rlvitals train TRAINER --help' lists a trainer's settings; each can be given as a flag or in CONFIG.yaml.\n"
        "'rlvitals train TRAINER --print-config' prints the settings it would train with, explained."
    )
    parser.add_argument("trainer", metavar="TRAINER", nargs="?", help=", ".join(TRAINERS))
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    name = arguments.trainer
    if name not in TRAINERS:
        what = (
            "no trainer is named." if name is None else f"there is no trainer {name!r}.{did_you_mean(name, TRAINERS)}"
        )
        raise ConfigError(f"{what} Trainers: {', '.join(TRAINERS)}")
    flags = _parse(name, arguments.words)
    given = {key: value for key, value in vars(flags).items() if key not in ("config", "print_config", "json")}
    with needs(f"train {name}", "train"):
        trainer: Any = import_module(f"rlvitals.train.{name}")
    settings = recipe.load(name, trainer.Settings, flags.config, given)
    if flags.print_config:
        put(recipe.text(name, settings).removesuffix("\n"))
        return 0
    outcome: recipe.TrainingOutcome = trainer.train(settings)
    if launched().rank > 0:  # only the process of rank 0 prints
        pass
    elif flags.json:
        print_json(asdict(outcome))
    else:
        say(outcome.verdict)
    return EXIT_FAILED if outcome.status == "failed" else 0


def _parse(name: str, words: list[str]) -> argparse.Namespace:
    parser = _Flags(
        prog=f"rlvitals train {name}",
        usage=f"rlvitals train {name} [CONFIG.yaml] [--setting value ...] [--print-config] [--json]",
        description=TRAINERS[name][0].upper() + TRAINERS[name][1:] + ".",
        allow_abbrev=False,
    )
    named = ", ".join(recipe.variants(name))
    about = "settings; flags win over it" + (f". Or one of the recipes that come with it: {named}" if named else "")
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", help=about)
    settings = parser.add_argument_group("settings")
    known = ["--print-config", "--json", "--help"]
    for setting in recipe.explained(name):
        flag = "--" + setting.name.replace("_", "-")
        known.append(flag)
        shown = recipe.written(setting.default)
        about = f"{setting.comment} (default: {shown})".replace("%", "%%")
        how: dict[str, Any] = {"dest": setting.name, "default": argparse.SUPPRESS, "help": about}
        if isinstance(setting.default, bool):
            settings.add_argument(flag, nargs="?", const=True, metavar="true|false", **how)
            settings.add_argument(
                "--no-" + flag[2:], action="store_const", const=False,
                dest=setting.name, default=argparse.SUPPRESS, help=argparse.SUPPRESS,
            )  # fmt: skip
        else:
            settings.add_argument(flag, metavar=_placeholder(setting.default), **how)
    parser.add_argument("--print-config", action="store_true", help="print all settings with explanations, and exit")
    add_json_flag(parser)
    flags, unknown = parser.parse_known_args(words)
    if unknown:
        word = unknown[0].partition("=")[0]
        near = did_you_mean(word, known)
        raise ConfigError(f"{name} has no setting {word!r}.{near} 'rlvitals train {name} --help' lists them.")
    return flags


def _placeholder(default: Any) -> str:
    return {int: "N", float: "X", list: "A,B"}.get(type(default), "VALUE")
