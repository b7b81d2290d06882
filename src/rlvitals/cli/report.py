"""`rlvitals report RUN_OR_LOG [--compare RUN...]`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from rlvitals.cli.flags import add_map_flag, mapping_from
from rlvitals.cli.output import add_json_flag, print_json, write_file
from rlvitals.errors import ConfigError
from rlvitals.terminal import put_data, say
from rlvitals.views.report import gather


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN_OR_LOG", help="a run's directory, or a log of another tool")
    parser.add_argument(
        "--compare", metavar="RUN", nargs="+", action="extend", default=[], help="runs or logs to compare with"
    )
    parser.add_argument(
        "--output", metavar="FILE",
        help="the file to write; - for standard output (default: NAME-report.html, or .md, in the working directory)",
    )  # fmt: skip
    parser.add_argument("--markdown", action="store_true", help="Markdown for a pull request instead of a page")
    add_map_flag(parser)
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    is_markdown = arguments.markdown or Path(arguments.output or "").suffix.lower() in (".md", ".markdown")
    if arguments.output and Path(arguments.output).is_dir():
        raise ConfigError(f"--output {arguments.output} is a folder: name a file in it")
    report = gather(arguments.path, arguments.compare, mapping_from(arguments.map))
    if arguments.json:
        print_json(report.to_dict())
        if not arguments.output:
            return 0
    if is_markdown:
        from rlvitals.render.report_markdown import markdown

        data = markdown(report).encode("utf-8", "replace")
    else:
        from rlvitals.render.report_html import page

        data = page(report).encode("utf-8", "replace")
    if arguments.output == "-":
        put_data(data)
        return 0
    name = re.sub(r"[^\w.-]+", "_", report.name).strip("._") or "run"
    target = Path(arguments.output or f"{name[:80]}-report.{'md' if is_markdown else 'html'}")
    write_file(target, data, folder_too=True)
    if not arguments.json:
        say(f"{target}")
    return 0
