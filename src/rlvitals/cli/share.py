"""`rlvitals share RUN... --to FOLDER|URL`."""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.errors import ConfigError
from rlvitals.store.publishing import publish
from rlvitals.store.remote import is_url, local_path
from rlvitals.terminal import clear_status, plural, say, show_status
from rlvitals.views.discovery import find_runs, is_run
from rlvitals.web.site import MARK, copy_runs, make_site

ROLLOUTS = 50
TITLE = "shared runs"
FOLDER = "runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="RUN", help="a run's directory or URL, or a folder of runs")
    parser.add_argument(
        "--to", required=True, metavar="FOLDER|URL", help="where to write the site: a folder, or a URL of fsspec"
    )
    parser.add_argument("--title", default=TITLE, help=f"the title of the site (default: {TITLE})")
    parser.add_argument(
        "--redact", action="append", default=[], metavar="PATTERN",
        help="a setting, metric, text or rollout field to leave out, by name or glob (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--no-texts", action="store_true", help="leave out prompts, completions, tool results and logged texts"
    )
    parser.add_argument(
        "--rollouts",
        type=int,
        default=ROLLOUTS,
        metavar="N",
        help=f"the number of rollouts of each run (default: {ROLLOUTS})",
    )
    parser.add_argument("--overwrite", action="store_true", help="write into a folder that contains other files")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.rollouts < 0:
        raise ConfigError(f"--rollouts {arguments.rollouts}: a number from 0 on")
    paths = [place for path in arguments.paths for place in _runs_at(path)]
    with tempfile.TemporaryDirectory(prefix="rlvitals-share-") as folder:
        root = Path(folder) / (re.sub(r"[^\w .-]", "_", arguments.title).strip(" .")[:60] or FOLDER)
        root.mkdir()
        copies = copy_runs(
            paths, root, patterns=arguments.redact, texts=not arguments.no_texts, rollouts=arguments.rollouts,
            progress=show_status,
        )  # fmt: skip
        made = make_site(copies, arguments.title, show_status)
    show_status(f"writing {len(made.files)} files")
    changed = publish(made.files, arguments.to, MARK, overwrite=arguments.overwrite)
    clear_status()
    facts = {
        "to": str(arguments.to),
        "runs": made.runs,
        "answers": made.answers,
        "files": len(made.files),
        "bytes": made.size,
    }
    if arguments.json:
        print_json(facts | {"changed": changed})
        return 0
    say(f"{arguments.to}: {plural(made.runs, 'run')}, {made.size / 1e6:.1f} MB, {changed} files written")
    if not is_url(arguments.to):
        say(f"Look at it: python -m http.server --bind 127.0.0.1 --directory {arguments.to}")
    return 0


def _runs_at(path: str) -> list[Path]:
    place = local_path(path)
    return [place] if is_run(place) or not place.is_dir() else list(find_runs(place)) or [place]
