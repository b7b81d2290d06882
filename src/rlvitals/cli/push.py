"""`rlvitals push RUN URL`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.store.layout import RunDir
from rlvitals.store.remote import is_url, upload_changes
from rlvitals.terminal import clear_status, say, show_status
from rlvitals.web.delivery import PATIENCE, Delivery, PushServer, default_name
from rlvitals.web.people import PUSH_VARIABLE, push_token


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run's directory; the run may still be recording")
    parser.add_argument(
        "url", metavar="URL", help="a server that accepts pushes (http, https), or a bucket's folder (s3, ...)"
    )
    parser.add_argument("--name", help="the name of the run on the server (default: its directory's name)")
    parser.add_argument("--follow", action="store_true", help="continue for as long as the run is being recorded")
    parser.add_argument("--token-file", metavar="FILE", help=f"the server's token for pushes (or in {PUSH_VARIABLE})")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, metavar="SECONDS",
        help=f"seconds without an answer before the command fails (default: {PATIENCE:.0f}); --follow waits",
    )  # fmt: skip
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    run_dir = RunDir(Path(arguments.path))
    name = arguments.name or default_name(run_dir.root)
    if is_url(arguments.url) and not arguments.url.lower().startswith(("http://", "https://")):
        count = upload_changes(run_dir, f"{arguments.url.rstrip('/')}/{name}", follow=arguments.follow)
        if arguments.json:
            print_json({"name": name, "files": count})
        else:
            say(f"{name}: {count} files sent")
        return 0
    delivery = Delivery(run_dir, PushServer(arguments.url, push_token(arguments.token_file)), name, show_status)
    try:
        delivery.send(follow=arguments.follow, patience=arguments.patience)
    finally:
        clear_status()
    if arguments.json:
        print_json({"name": name, "bytes": delivery.bytes_sent, "retries": delivery.retries})
    else:
        say(f"{name}: the server has the whole run ({delivery.bytes_sent:,} bytes sent)")
    return 0
