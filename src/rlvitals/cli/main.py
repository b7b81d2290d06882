"""`rlvitals VERB ...`: finds the verb's module, runs it, and turns errors into one line and an exit code.

Exit codes: 0 done; 1 the answer is no (an unknown metric, runs that do not compare); 64 wrong usage or an unreadable
run. `check` and `scan` have their own: 0 healthy, 1 watch, 2 act, 3 cannot judge. `gate`: 2 the runs cannot be compared
or read. `train`: 1 the training failed.
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
"""The same as Python's exit code for an uncaught exception."""

OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""With Python's default of 700, garbage collection during the imports takes 0.07 s of the dashboard's start."""

VERBS = {
    "check": "judge a run or any log: the verdict (healthy, watch or act) with evidence and advice",
    "backtest": "measure hits, delay and false alarms of a set of rules on past logs",
    "explain": "explain a metric (formula, typical ranges, causes, fixes, other names), a rule or a kind of trouble",
    "rules": "list every rule, or show those of a name or a kind of trouble in full",
    "runs": "list the runs below a directory",
    "serve": "serve the dashboard of a folder of runs, live; by default reachable from this machine only",
    "mcp": "run an MCP server for coding agents over a folder of runs: verdicts, series, rollouts; read-only",
    "skill": "print the guide for coding agents: how to judge a run, when not to stop one; --install saves it",
    "show": "show the status, last rows, best and final values of a run or any log",
    "compare": "compare runs: different settings, best and final values, and from which step they differ",
    "gate": "test whether a change made training worse: a run against a few baselines, for CI",
    "plot": "plot a run or any log: its vital signs, or the given metrics",
    "report": "write a report on a run or any log: one self-contained page, or Markdown",
    "share": "write runs as a static site: the dashboard's pages over files, for any web server, bucket or Space",
    "push": "send a run to a server that accepts pushes, or to a bucket; a repeated call resumes",
    "watch": "watch a run or any log in the terminal while it is written: vital signs, charts, findings, rollouts",
    "rollouts": "show a run's rollouts: groups, turn tables, transcripts, the worst, a text search, two steps compared",
    "scan": "find patterns in the texts of rollouts (exploits, loops, refusals, your own) that are rewarded or spread",
    "audit-judge": "test a judge on a labelled set: errors, order flips, length bias, self-agreement, drift",
    "train": "train a model with GRPO, KTO, PPO/RLHF or RLAIF, with recording and monitoring",
    "ask": "ask a live run's trainer to stop, save, reduce its learning rate or revert, and print its answer",
    "evals": "show the trend of an agent's evaluations, with several runs or checkpoints side by side",
    "eval": "compute BLEU, ROUGE-L, CodeBLEU, RUBY and BERTScore of prediction and reference pairs",
    "export": "export every point of a run as CSV, JSON or Parquet",
    "import": "import a log of another tool as a run, with every point under its name",
    "compact": "compress a finished run's logs without loss; --undo restores them",
    "prune": "delete old rollouts and evaluation files of a run; its rows are kept",
    "purge": "remove runs from disk that were marked as deleted in the dashboard",
    "notify": "test notification services, and send the unsent notifications of a run",
    "sync": "bring a tracker up to date with a run",
    "env": "print the versions of rlvitals, Python and related packages, and the machine, for a bug report",
    "completion": "print a script that completes verbs, flags and paths in bash, zsh or fish",
}
"""Each verb is a module of this folder with `add_arguments` and `run`."""

MODULES = {"audit-judge": "audit_judge", "import": "import_log", "eval": "text_scores", "evals": "evaluation_trend"}
"""Verbs whose module has another name: the verb is no valid module name, or is too similar to another verb."""


class Verb(Protocol):
    """The functions of a verb's module."""

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
    except OSError as error:  # such as a read error in the middle of a file
        return _fail(f"{error.filename or arguments.__dict__.get('path', name)}: {error.strerror or error}", EXIT_USAGE)


def verb_of(name: str) -> tuple[Verb, argparse.ArgumentParser]:
    """A verb's module and the parser of its arguments."""
    verb: Verb = import_module(f"rlvitals.cli.{MODULES.get(name, name)}")
    parser = _Parser(prog=f"rlvitals {name}", description=VERBS[name][0].upper() + VERBS[name][1:] + ".")
    verb.add_arguments(parser)
    return verb, parser


def run() -> NoReturn:
    """The console script."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    code = EXIT_DEFECT
    try:
        with guarded(_print_defect, but=(BrokenPipeError,)):
            code = main()
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of the output (head, less) has exited: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _print_defect(error: Exception) -> None:
    """Print the traceback of a defect, with foreign text made harmless."""
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
        epilog=f"verbs:\n{verbs}\n\n'rlvitals VERB --help' lists its options. Most verbs print JSON with --json.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


if __name__ == "__main__":
    run()
