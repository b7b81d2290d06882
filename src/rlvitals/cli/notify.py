"""`rlvitals notify [RUN] [--test SERVICE]`: lists or tests the services, or sends unsent notifications."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.config import resolve
from rlvitals.errors import ConfigError, RunError, RunLocked
from rlvitals.notify.briefer import Briefer
from rlvitals.notify.courier import Courier, NotNow, unsent
from rlvitals.notify.messages import link_of, trial_message
from rlvitals.notify.targets import Target, open_service, service_class, targets_of
from rlvitals.plugins import NOTIFY_SERVICES
from rlvitals.records import SEVERITIES
from rlvitals.store.layout import RunDir
from rlvitals.store.outbox import read_outbox
from rlvitals.store.remote import is_url
from rlvitals.terminal import say
from rlvitals.views.run import open_run

EXIT_NOT_SENT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="RUN", nargs="?", help="send the unsent notifications of this run; with --test: use its chart"
    )
    parser.add_argument("--test", metavar="SERVICE", help=f"send a test message: {', '.join(NOTIFY_SERVICES)}")
    parser.add_argument(
        "--to", action="append", metavar="SERVICE", help="send to this one (default: those in the run's settings)"
    )
    parser.add_argument("--on", choices=SEVERITIES, help="with --to: the lowest severity")
    parser.add_argument("--name", metavar="NAME", help="with --test: the name of the target, if it has one")
    parser.add_argument("--file", metavar="FILE", help="the template of the service 'template'")
    parser.add_argument("--link", metavar="URL", help="the address of the run's page; {run} stands for its directory")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.path is not None and is_url(arguments.path):
        raise RunError("notifications are sent from the run's own folder: use the path on the machine that has it")
    if arguments.test is not None:
        return _test(arguments)
    if arguments.path is None:
        return _list(arguments.json)
    return _send_left(arguments)


def _test(arguments: argparse.Namespace) -> int:
    given = {"to": arguments.test, "name": arguments.name, "file": arguments.file}
    (target,) = targets_of(_checked({"to": [_without_nothing(given)], "link": arguments.link}))
    service = open_service(target)
    picture, link = None, target.link
    if arguments.path is not None:
        view = open_run(arguments.path)
        link = link_of(link, Path(view.path).name)
        picture = Briefer(RunDir(Path(view.path)), [target]).ask().picture
    outcome = service.send(trial_message(picture if service.takes_pictures else None, link))
    is_sent = outcome.fate == "sent"
    if arguments.json:
        print_json({"target": target.name, "sent": is_sent, "problem": outcome.problem})
    else:
        say(f"{target.name}: " + ("the test message was sent" if is_sent else f"not sent: {outcome.problem}"))
    return 0 if is_sent else EXIT_NOT_SENT


def _send_left(arguments: argparse.Namespace) -> int:
    view = open_run(arguments.path)
    run_dir = RunDir(Path(arguments.path))
    targets = targets_of(_settings(view.config, arguments))
    outcomes: list[dict[str, Any]] = []
    for target in targets:
        open_service(target)  # a missing variable raises before anything is sent
    for target in targets:
        courier, problem = Courier(run_dir, target), ""
        try:
            courier.send_all()
        except NotNow:
            outbox = read_outbox(run_dir, target.name)
            problem = outbox.error if outbox is not None and outbox.error else "the service did not take it"
        except RunLocked:
            problem = "the process beside the trainer is sending; it ends with the run"
        outcomes.append(
            {"target": target.name, "left": unsent(run_dir, target), "problem": problem} | _counts(run_dir, target)
        )
    if arguments.json:
        print_json(outcomes)
    else:
        for one in outcomes:
            left = f", {one['left']} left: {one['problem']}" if one["problem"] else ""
            say(f"{one['target']}: {one['sent']} sent in all{left}")
    return EXIT_NOT_SENT if any(one["problem"] for one in outcomes) else 0


def _counts(run_dir: RunDir, target: Target) -> dict[str, int]:
    outbox = read_outbox(run_dir, target.name)
    return {"sent": 0 if outbox is None else outbox.sent, "refused": 0 if outbox is None else outbox.refused}


def _list(as_json: bool) -> int:
    """List the services and their variables: whether each is set, never its value."""
    variables = [
        {"service": name, "variable": variable.name, "holds": variable.holds, "needed": variable.is_needed,
         "is_set": bool(os.environ.get(variable.name))}
        for name in NOTIFY_SERVICES
        for variable in service_class(name).variables
    ]  # fmt: skip
    if as_json:
        print_json(variables)
        return 0
    for one in variables:
        state = "set" if one["is_set"] else "not set" if one["needed"] else "not set (optional)"
        say(f"{one['service']:<10} {one['variable']:<31} {state:<19} {one['holds']}")
    say("'rlvitals notify --test SERVICE' sends a test message.")
    return 0


def _settings(config: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """The targets of `--to`, or those in the run's settings."""
    own = config.get("rlvitals")
    recorded = own.get("notify") if isinstance(own, dict) else None
    recorded = recorded if isinstance(recorded, dict) else {}
    named = arguments.to
    targets = [
        _without_nothing({"to": name, "on": arguments.on, "file": arguments.file if name == "template" else None})
        for name in named or ()
    ]
    given = {"to": targets or recorded.get("to"), "link": arguments.link or recorded.get("link")}
    if not given["to"]:
        raise ConfigError("the run's settings name no notification target; name a service: --to slack")
    return _checked(given)


def _checked(notify: dict[str, Any]) -> dict[str, Any]:
    return resolve(None, {"notify": _without_nothing(notify)}).notify


def _without_nothing(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}
