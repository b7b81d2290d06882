"""`rlvitals serve [DIR]`."""

from __future__ import annotations

import argparse
import os

from rlvitals.errors import ConfigError
from rlvitals.terminal import say

TOKEN_VARIABLE = "RLVITALS_TOKEN"  # noqa: S105


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", default=".", metavar="DIR", help="the folder of runs (default: here)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine alone)")
    parser.add_argument("--port", type=int, default=8642, help="the port; 0 takes a free one (default: 8642)")
    parser.add_argument(
        "--token",
        help=f"what a page must know (or in {TOKEN_VARIABLE}); beyond this machine one is made if none is given",
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="another name this server goes by (a proxy's)"
    )


def run(arguments: argparse.Namespace) -> int:
    from rlvitals.web.server import serve

    if not 0 <= arguments.port < 65536:
        raise ConfigError(f"--port {arguments.port}: a port is a number from 0 to 65535")
    token = arguments.token or os.environ.get(TOKEN_VARIABLE) or None
    serve(
        arguments.directory, arguments.host, arguments.port, token=token, allow_hosts=arguments.allow_host, ready=_ready
    )
    return 0


def _ready(url: str) -> None:
    say(f"The dashboard is at {url}")
    say("Ctrl-C ends it; the runs are only read.")
