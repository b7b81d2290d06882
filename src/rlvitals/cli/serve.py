"""`rlvitals serve [DIR]`."""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rlvitals.errors import ConfigError
from rlvitals.guard import Once
from rlvitals.store.remote import Mirror, is_url
from rlvitals.terminal import say, warn
from rlvitals.web.people import PUSH_VARIABLE, push_token

if TYPE_CHECKING:
    from rlvitals.web.server import Team

TOKEN_VARIABLE = "RLVITALS_TOKEN"  # noqa: S105


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        nargs="?",
        default=".",
        metavar="DIR",
        help="the folder of runs, or its URL in a bucket (default: here)",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: reachable from this machine only)"
    )
    parser.add_argument("--port", type=int, default=8642, help="the port; 0 takes a free one (default: 8642)")
    parser.add_argument(
        "--token",
        help=f"the token for pages (or in {TOKEN_VARIABLE}); if other machines can connect, one is created by default",
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="another host name of this server (a proxy's)"
    )
    parser.add_argument(
        "--edit",
        action="store_true",
        help="let pages name, tag, annotate, archive and delete runs; stored in one file of the folder",
    )
    parser.add_argument("--tokens", metavar="FILE", help="one token per person: a name and a token on each line")
    parser.add_argument("--new-token", metavar="NAME", help="print a new token and its line for that file, and exit")
    parser.add_argument(
        "--access-log", metavar="FILE", help="log every request and who made it to a file; - for standard error"
    )
    parser.add_argument(
        "--accept-pushes", action="store_true",
        help=f"let 'rlvitals push' write runs into the folder; needs a token in {PUSH_VARIABLE} or --push-token-file",
    )  # fmt: skip
    parser.add_argument("--push-token-file", metavar="FILE", help="the token for pushes")
    parser.add_argument(
        "--push-quota",
        type=float,
        default=10.0,
        metavar="GB",
        help="GB that pushed runs may take together (default: 10)",
    )


def run(arguments: argparse.Namespace) -> int:
    from rlvitals.web.server import serve

    token = token_of(arguments)
    if arguments.new_token:
        return _new_token(arguments.new_token)
    directory = _mirrored(arguments.directory) if is_url(arguments.directory) else arguments.directory
    team = _team(arguments, directory)
    if arguments.tokens:
        say("Each person opens the address below once with ?token= and a token.")
    if arguments.accept_pushes:
        say(f"Runs may be pushed into {directory} with the token for pushes.")
    serve(
        directory, arguments.host, arguments.port, token=token, allow_hosts=arguments.allow_host,
        edit=arguments.edit, team=team, ready=_ready_to_edit if arguments.edit else _ready,
    )  # fmt: skip
    return 0


def token_of(arguments: argparse.Namespace) -> str | None:
    """The token for everybody, from the command line or the environment. Raises ConfigError if it is given beside a
    file of tokens, or if the port is not a port.
    """
    if not 0 <= arguments.port <= 65535:
        raise ConfigError(f"--port {arguments.port}: a port is a number from 0 to 65535")
    if arguments.tokens and arguments.token:
        raise ConfigError("pass --tokens or --token, not both")
    return arguments.token or os.environ.get(TOKEN_VARIABLE) or None


def _team(arguments: argparse.Namespace, directory: str | Path) -> Team:
    from rlvitals.store.inbox import Inbox
    from rlvitals.web.access_log import AccessLog
    from rlvitals.web.people import TokenFile
    from rlvitals.web.server import Team

    if is_url(arguments.directory) and arguments.accept_pushes:
        raise ConfigError("--accept-pushes writes into a folder of this machine; push to the bucket itself instead")
    if is_url(arguments.directory) and arguments.edit:
        raise ConfigError("--edit writes into the served folder, and that of a bucket is a copy: use a folder")
    nobody = Team()
    accepts = arguments.accept_pushes
    return Team(
        people=TokenFile(Path(arguments.tokens)) if arguments.tokens else None,
        inbox=Inbox(Path(directory), int(arguments.push_quota * 1e9)) if accepts else None,
        push_token=push_token(arguments.push_token_file) if accepts else None,
        seen=AccessLog(arguments.access_log) if arguments.access_log else nobody.seen,
    )


def _mirrored(url: str) -> Path:
    """The local copy of a bucket's runs. A thread keeps it up to date."""
    mirror = Mirror(url)
    mirror.refresh()
    once = Once(warn)

    def report(error: Exception) -> None:
        once(str(error))

    threading.Thread(
        target=mirror.keep_fresh, args=(lambda: False, report), name="rlvitals-mirror", daemon=True
    ).start()
    return mirror.folder


def _new_token(name: str) -> int:
    from rlvitals.web.people import new_token

    token, line = new_token(name)
    say(f"token for {name}, shown once: {token}")
    say(f"line for the file of --tokens: {line}")
    return 0


def _ready(url: str) -> None:
    say(f"The dashboard is at {url}")
    say("Press Ctrl-C to stop. Runs are never modified.")


def _ready_to_edit(url: str) -> None:
    say(f"The dashboard is at {url}")
    say("Press Ctrl-C to stop. Names, tags and notes are written to .rlvitals-marks.json; runs are never modified.")
