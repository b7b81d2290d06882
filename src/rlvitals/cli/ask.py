"""`rlvitals ask RUN stop|checkpoint|reduce_lr|revert`: sends a request to a live run's trainer.

It waits for the trainer's answer. Without an action, it lists the requests that people have sent.
"""

from __future__ import annotations

import argparse
import getpass
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.config import ActionMode
from rlvitals.errors import ConfigError, RunError, explained
from rlvitals.health.history import History
from rlvitals.records import Action, HealthEvent
from rlvitals.render.check import asked_line
from rlvitals.store.asks import Ask, is_waiting, put, withdraw
from rlvitals.store.findings import read_events
from rlvitals.store.layout import RunDir
from rlvitals.store.remote import is_url
from rlvitals.terminal import say, warn
from rlvitals.views.query import StoredRun
from rlvitals.views.run import open_run

ACTIONS: tuple[Action, ...] = ("stop", "checkpoint", "reduce_lr", "revert")
LOOK_SECONDS = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="the directory of a run that is being recorded")
    parser.add_argument(
        "action", nargs="?", choices=ACTIONS, help="the action for the trainer (default: list all requests)"
    )
    parser.add_argument("--why", default="", metavar="TEXT", help="the reason, recorded with the request")
    parser.add_argument("--by", metavar="NAME", help="who asks (default: the name of your account)")
    parser.add_argument(
        "--factor",
        type=float,
        metavar="F",
        help="for reduce_lr and revert: the factor of the learning rate (default: 0.5)",
    )
    parser.add_argument(
        "--checkpoint", type=int, metavar="STEP", help="for revert: the step of the checkpoint (default: the newest)"
    )
    parser.add_argument(
        "--wait", type=float, default=60.0, metavar="SECONDS", help="how long to wait for the answer (default: 60)"
    )
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    if is_url(arguments.path):
        raise RunError("requests are written into the run's folder: use the path on the machine that trains")
    view = open_run(arguments.path)
    run_dir = RunDir(Path(arguments.path))
    if arguments.action is None:
        return _list(view, arguments.json)
    ask = Ask(
        arguments.action,
        arguments.by or _account(),
        view.info.attempt,
        arguments.why,
        _only_of(arguments, "checkpoint", "revert"),
        _factor(_only_of(arguments, "factor", "reduce_lr", "revert")),
    )
    _must_listen(view)
    with explained(f"cannot write to {run_dir.asks}"):
        name = put(run_dir, ask)
    facts = _answer(run_dir, name, arguments.wait)
    if arguments.json:
        print_json({"action": ask.action, "asked_by": ask.asked_by, "why": ask.why, **facts})
    else:
        _print_outcome(ask, facts, arguments.wait)
    return 0 if facts["answer"] == "done" else 1


def _must_listen(view: StoredRun) -> None:
    """Raise RunError if no trainer would take the request. The message says what to do."""
    if view.status != "running":
        raise RunError(f"{view.path} is {view.status}: there is no trainer to ask")
    here = [event for event in view.health_events if event.type == "monitor" and event.attempt == view.info.attempt]
    if not here:
        raise RunError(f"{view.path} has not logged a row yet; ask again when it has")
    if not here[-1].facts.get("takes_requests"):
        modes = " or ".join(f"actions={mode!r}" for mode in get_args(ActionMode) if mode != "advise")
        raise RunError(f"{view.path} takes no requests: start it with {modes}")


def _answer(run_dir: RunDir, name: str, seconds: float) -> dict[str, Any]:
    """The result of a request: its number in the run, the answer, its text and its step. Missing ones are None."""
    until = time.monotonic() + seconds
    while True:
        events = read_events(run_dir)
        number = next((e.facts["request"] for e in events if e.type == "request" and e.facts.get("ask") == name), None)
        event = next((e for e in events if e.type == "answer" and e.facts.get("request") == number), None)
        if number is not None and event is not None:
            return {"request": number, **_answer_facts(event), "step": event.step}
        if time.monotonic() > until:
            # A request that no trainer has taken must not take effect later, when nobody expects it.
            is_back = number is None and is_waiting(run_dir, name) and withdraw(run_dir, name)
            return {"request": number, "answer": "withdrawn" if is_back else None, "text": "", "step": None}
        time.sleep(LOOK_SECONDS)


def _answer_facts(event: HealthEvent) -> dict[str, Any]:
    return {"answer": event.facts.get("answer"), "text": event.facts.get("text", "")}


def _print_outcome(ask: Ask, facts: dict[str, Any], seconds: float) -> None:
    what = ask.action.replace("_", " ")
    if facts["answer"] == "withdrawn":
        warn(
            f"{what}: the trainer did not take the request within {seconds:g} s, and it was withdrawn. A training loop "
            "takes requests where it calls actions.carry_out() or run.request()"
        )
    elif facts["answer"] is None:
        warn(f"{what}: the trainer has taken the request and has not answered within {seconds:g} s")
    else:
        text = f" ({facts['text']})" if facts["text"] else ""
        (say if facts["answer"] == "done" else warn)(f"{what}: {facts['answer']} at step {facts['step']:,}{text}")


def _list(view: StoredRun, is_json: bool) -> int:
    asked = History(view.health_events).asked_by_people
    if is_json:
        print_json([asdict(one) for one in asked])
    elif not asked:
        say(f"{view.path}: there are no requests to this run's trainer")
    for one in [] if is_json else asked:
        say(asked_line(asdict(one)))
    return 0


def _account() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the user has no name, as in some containers
        return f"user {os.getuid()}"


def _only_of(arguments: argparse.Namespace, flag: str, *actions: str) -> Any:
    given = getattr(arguments, flag)
    if given is not None and arguments.action not in actions:
        raise ConfigError(f"--{flag} is for {' and '.join(actions)}, not for {arguments.action}")
    return given


def _factor(factor: float | None) -> float | None:
    if factor is not None and not 0 < factor < 1:
        raise ConfigError(f"--factor is what the learning rate is multiplied by, between 0 and 1, not {factor:g}")
    return factor
