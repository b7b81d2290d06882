"""`rlvitals mcp [DIR] [--http]`: an MCP server through which coding agents query runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlvitals.cli.serve import TOKEN_VARIABLE, token_of
from rlvitals.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", default=".", metavar="DIR", help="the folder of runs (default: here)")
    parser.add_argument(
        "--http",
        action="store_true",
        help="use streamable HTTP, reachable from this machine only (default: standard input and output)",
    )
    parser.add_argument(
        "--port", type=int, default=8643, help="with --http: the port; 0 takes a free one (default: 8643)"
    )
    parser.add_argument("--token", help=f"with --http: the token that a client must send (or in {TOKEN_VARIABLE})")
    parser.add_argument(
        "--tokens", metavar="FILE", help="with --http: one token per person, in the format of 'rlvitals serve'"
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="with --http: another host name of this server (a proxy's)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    from rlvitals.agents.server import serve_http, serve_stdio
    from rlvitals.web.people import TokenFile

    if not arguments.http:
        serve_stdio(arguments.directory)
        return 0
    serve_http(
        arguments.directory,
        port=arguments.port,
        token=token_of(arguments),
        people=TokenFile(Path(arguments.tokens)) if arguments.tokens else None,
        allow_hosts=arguments.allow_host,
        ready=_ready,
    )
    return 0


def _ready(url: str) -> None:
    say(f"The MCP server is at {url}")
    say("Press Ctrl-C to stop. Runs are never modified.")
