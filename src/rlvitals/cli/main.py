"""`rlvitals VERB ...`: finds the verb's module, runs it, and turns errors into one line and an exit code.

Exit codes: 0 done; 1 the answer is no (an unknown metric, runs that do not compare); 64 wrong usage or an unreadable
run. `check` and `scan` have their own: 0 healthy, 1 watch, 2 act, 3 cannot judge. `train`: 1 the training failed.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, Protocol

from rlvitals.cli.flags import Parser
from rlvitals.errors import NotComparable, RlvitalsError, UnknownMetric, did_you_mean
from rlvitals.guard import guarded
from rlvitals.terminal import message as harmless
from rlvitals.terminal import say, survive_narrow_encodings, warn
from rlvitals.version import __version__

EXIT_NO = 1
EXIT_USAGE = 64
EXIT_DEFECT = 1
"""As Python's own for an exception nobody caught."""

OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Python's own 700 make it search for garbage all through the imports: 0.07 s of the dashboard's start."""

VERBS = {
    "check": "the verdict on a run or any log: healthy, watch or act, with evidence and advice",
    "backtest": "hits, delay and false alarms of a set of rules over logs",
    "explain": "what a metric is, how it is computed, typical ranges, causes, fixes, other names; or what a rule is",
    "rules": "what the doctor goes by: every rule, or those of a name or a kind of trouble in full",
    "runs": "list the runs below a directory",
    "serve": "the dashboard: a page over a folder of runs, live, on this machine alone unless told otherwise",
    "mcp": "an MCP server for coding agents over a folder of runs: verdicts, series, rollouts; it only reads",
    "skill": "the guide for coding agents: how to judge a run, when not to stop one; --install puts it where they look",
    "show": "status, last rows, best and final values of a run",
    "compare": "settings that differ, best and final values, where runs part",
    "gate": "has a change made training worse? a run against few baselines, for CI",
    "plot": "pictures of a run or any log: its vital signs, or the metrics named",
    "report": "a run or any log as one self-contained page, or as Markdown, to send to somebody",
    "share": "runs as a static site: the same pages over files, for any web server, bucket or Space",
    "push": "send a run to a server that accepts pushes, or to a bucket; resumes where it stopped",
    "watch": "a run or any log in the terminal while it is written: vital signs, charts, findings, rollouts",
    "rollouts": "groups, turn tables and transcripts of a run's rollouts; the worst, a text, two steps compared",
    "scan": "patterns in the texts of rollouts: exploits, loops, refusals, your own; whether they pay and spread",
    "audit-judge": "a judge against a held set: errors, order flips, length bias, self-agreement, drift",
    "train": "train a model with GRPO, KTO, PPO/RLHF or RLAIF, recorded and watched",
    "ask": "ask a live run's trainer to stop, save, cut its learning rate or go back, and see what it answers",
    "evals": "the trend of an agent's evaluations, of several runs or checkpoints side by side",
    "eval": "BLEU, ROUGE-L, CodeBLEU, RUBY and BERTScore of prediction and reference pairs",
    "export": "every point of a run as CSV, JSON or Parquet",
    "import": "a log other tools wrote, as a run: every point under its own name",
    "compact": "archive a finished run's logs without losing a byte; --undo brings them back",
    "prune": "drop old rollouts and evaluation files of a run by rule; its rows stay",
    "purge": "remove the runs from the disk that were marked as deleted in the dashboard",
    "notify": "try the services that tell people of findings, and send what is left of a run's notifications",
    "sync": "bring a tracker up to date with a run",
    "env": "versions of rlvitals, Python and the packages it works with, and the machine: what a bug report needs",
    "completion": "a script that lets bash, zsh or fish complete verbs, flags and paths",
}
"""Each verb is a module of this folder with `add_arguments` and `run`."""

MODULES = {"audit-judge": "audit_judge", "import": "import_log", "eval": "text_scores", "evals": "evaluation_trend"}
"""Verbs whose module has another name: it cannot have the verb's, or the verbs' names are too near to each other."""


class Verb(Protocol):
    """What a verb's module offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, arguments: argparse.Namespace) -> int: ...


class _Parser(Parser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: error: {harmless(message)}\n")


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    survive_narrow_encodings()
    top = _top_parser()
    if not words or words[0] in ("-h", "--help"):
        top.print_help()
        return 0 if words else EXIT_USAGE
    if words[0] in ("-V", "--version"):
        say(f"rlvitals {__version__}")
        return 0
    name = words[0]
    if name not in VERBS:
        top.error(f"there is no verb {name!r}.{did_you_mean(name, VERBS)} Verbs: {', '.join(VERBS)}")
    verb, parser = verb_of(name)
    arguments = parser.parse_args(words[1:])
    try:
        return verb.run(arguments)
    except (UnknownMetric, NotComparable) as error:
        return _fail(error, EXIT_NO)
    except RlvitalsError as error:
        return _fail(error, EXIT_USAGE)
    except BrokenPipeError:
        raise
    except OSError as error:  # a disk that fails in the middle of a file
        return _fail(f"{error.filename or arguments.__dict__.get('path', name)}: {error.strerror or error}", EXIT_USAGE)


def verb_of(name: str) -> tuple[Verb, argparse.ArgumentParser]:
    """A verb's module and the parser of its arguments."""
    verb: Verb = import_module(f"rlvitals.cli.{MODULES.get(name, name)}")
    parser = _Parser(prog=f"rlvitals {name}", description=VERBS[name].capitalize() + ".")
    verb.add_arguments(parser)
    return verb, parser


def run() -> NoReturn:
    """The console script."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    code = EXIT_DEFECT
    try:
        with guarded(_tell_defect, but=(BrokenPipeError,)):
            code = main()
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our output (head, less) has gone; that is its right
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _tell_defect(error: Exception) -> None:
    """A defect of ours, told as Python does; but what it repeats may be anybody's."""
    warn("".join(traceback.format_exception(error)).rstrip())


def _fail(error: Exception | str, code: int) -> int:
    warn(f"rlvitals: error: {error}")
    return code


def _top_parser() -> _Parser:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in VERBS.items())
    return _Parser(
        prog="rlvitals",
        usage="rlvitals VERB [options]",
        description="The vital-signs monitor of RL post-training.",
        epilog=f"verbs:\n{verbs}\n\n'rlvitals VERB --help' tells more. --json gives every verb's facts as JSON.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


if __name__ == "__main__":
    run()
