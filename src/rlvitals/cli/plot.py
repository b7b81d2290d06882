"""`rlvitals plot RUN_OR_LOG [METRIC...]`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from rlvitals.cli.output import add_json_flag, print_json, write_file
from rlvitals.errors import ConfigError
from rlvitals.render.run_plots import Picture, Smooth, draw
from rlvitals.store.layout import RunDir
from rlvitals.terminal import say
from rlvitals.views.logs import LogView, open_any
from rlvitals.views.plots import chosen, overview
from rlvitals.views.query import AXIS_CONCEPTS
from rlvitals.views.run import RunView

FORMATS = ("png", "svg", "pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN_OR_LOG", help="a run's directory, or a log of another tool")
    parser.add_argument(
        "metrics",
        metavar="METRIC",
        nargs="*",
        help="only these metrics, one panel each (default: the algorithm's vital signs)",
    )
    parser.add_argument(
        "--output", metavar="DIR_OR_FILE",
        help="a folder, or a file that ends in .png, .svg or .pdf (default: RUN/metrics/plots; "
        "for a log the working directory)",
    )  # fmt: skip
    parser.add_argument("--x", choices=["step", "time", *AXIS_CONCEPTS], default="step", help="the x-axis")
    parser.add_argument(
        "--smooth", metavar="N", type=_smoothing, default="auto",
        help="average over N points; 0 draws only the raw points (default: depends on the number of points)",
    )  # fmt: skip
    parser.add_argument("--last", metavar="N", type=int, help="only the last N rows")
    parser.add_argument("--no-findings", action="store_true", help="do not detect or mark findings")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.last is not None and arguments.last < 1:
        raise ConfigError(f"--last is a number of rows, at least 1, not {arguments.last}")
    view = open_any(arguments.path)
    target = _target(view, arguments.output, arguments.metrics)
    judged = not arguments.no_findings
    if arguments.metrics:
        picture = chosen(view, arguments.metrics, arguments.x, arguments.last, judged=judged)
    else:
        picture = overview(view, arguments.x, arguments.last, judged=judged)
    size = write_picture(picture, target, arguments.smooth)
    if arguments.json:
        print_json(
            {
                "path": str(target),
                "bytes": size,
                "panels": [{"title": panel.title, "metrics": panel.name.split(", ")} for panel in picture.panels],
                "remarks": [text for _, text in picture.remarks],
            }
        )
    else:
        say(f"{target}")
    return 0


def write_picture(picture: Picture, target: Path, smooth: Smooth = "auto") -> int:
    """Draw to a file, which is replaced atomically. Returns its size in bytes."""
    data = draw(picture, smooth, target.suffix[1:].lower())
    write_file(target, data, folder_too=True)
    return len(data)


def picture_named(given: str, hint: str = "") -> Path:
    """The file that `--plot` names. Raises ConfigError if it does not have the extension of a picture."""
    if not is_picture(Path(given)):
        raise ConfigError(f"--plot {given}: a picture's name ends in .png, .svg or .pdf{hint}")
    return Path(given)


def is_picture(path: Path) -> bool:
    """Whether a file name has the extension of a picture."""
    return path.suffix[1:].lower() in FORMATS


def _target(view: RunView, output: str | None, metrics: list[str]) -> Path:
    name = "-".join(re.sub(r"[^\w.]+", "_", metric).strip("_") for metric in metrics)[:80] or "overview"
    if output is not None and is_picture(Path(output)):
        return Path(output)
    if isinstance(view, LogView):
        return Path(output or ".") / f"{view.name}-{name}.png"
    return (Path(output) if output is not None else RunDir(view.path).epochs.plots) / f"{name}.png"


def _smoothing(text: str) -> Smooth:
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of points")
    return int(text)
