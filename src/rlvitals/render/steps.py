"""One logged step as text for a console: a compact line, a row of a table, or a line of JSON.

Owns the layouts and how they fit a width. `capture.console` decides what is printed, when, and to which stream. A line
is a list of pieces with roles, so that the same line can be plain or coloured. This module does not import rich, which
would slow down trainers that print plain lines.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from unicodedata import east_asian_width

from rlvitals.codec import encode
from rlvitals.render.numbers import duration, number
from rlvitals.terminal import visible

Role = Literal["", "title", "step", "first", "bad", "note"]
"""The kind of a piece of a line, for colouring. `first`: the first metric; `bad`: NaN, infinity, a failed run."""


class StyledText(NamedTuple):
    """A piece of text with one role."""

    text: str
    role: Role = ""


Line = list[StyledText]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    shows: tuple[str, ...]
    """Catalogue ids or logged names. The first one that a row has is shown."""
    width: int = 9
    """Includes the gap to the next column."""
    decimals: int | None = None
    """None for about three significant digits."""
    is_right: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Which numbers of a step are shown, and how often."""

    columns: tuple[Column, ...] = ()
    """If empty: the algorithm's vital signs, then the other logged metrics, as many as fit."""
    step_width: int = 9
    every: int = 1
    """Print every n-th step."""
    header_every: int = 20
    """Rows from one header to the next."""


LAYOUTS: dict[str, Layout] = {
    "line": Layout(step_width=7),
    "kto": Layout(
        every=5,
        columns=(
            Column("Loss", ("train.loss",), 8, 3),
            Column("Chosen", ("pref.reward.chosen",), 8, 3),
            Column("Reject", ("pref.reward.rejected",), 8, 3),
            Column("Margin", ("pref.reward.margin",), 9, 3),
        ),
    ),
    "grpo": Layout(
        columns=(
            Column("Reward", ("reward.total.mean",), 9, 3),
            Column("KL", ("kl_ref.k3", "kl_ref.k1"), 9, 4),
            Column("Entropy", ("entropy.mean",), 9, 3),
            Column("Length", ("length.response.mean",), 9, 1),
            Column("Clipped", ("policy.clip_fraction",), 9, 4),
            Column("Grad", ("optim.grad_norm",), 9, 3),
        ),
    ),
}
"""Layouts by name. `kto` matches the table of the KTO guide character by character."""

MOST_METRICS = 10
"""The most metrics in a line. More are hard to read, even on a wide terminal."""

LONGEST_TITLE = 20
NUMBER_WIDTH = 8
WIDEST_ETA = "59 min 59 s"

_STATISTICS = frozenset({"mean", "avg", "max", "min", "std", "var", "sum", "median", "total", "p50", "p90", "p99"})
"""Last parts of a name that are unclear alone: `critic/score/mean` is shortened to `score/mean`, not `mean`."""


def step_text(
    layout: Layout,
    *,
    as_table: bool = False,
    algorithm: str | None = None,
    framework: str | None = None,
    total: int | None = None,
    encoding: str,
) -> StepText:
    """Create the object that formats successive steps as lines and keeps them aligned. A layout with columns is always
    a table; other layouts are tables if `as_table` is set.
    """
    order = _Order(framework, algorithm, encoding)
    return _Table(layout, order, total, encoding) if layout.columns or as_table else _Lines(order, total)


def plain(line: Line) -> str:
    """A line without its roles."""
    return "".join(piece.text for piece in line).rstrip()


def json_line(step: int, metrics: Mapping[str, Any], encoding: str) -> str:
    """ROLL's stdout format: one line with a tag and strict JSON. Non-finite numbers are written as strings.

    >>> json_line(10, {"loss": 0.62, "kl": float("nan")}, "utf-8")
    'metrics_tag: {"step":10,"metrics":{"loss":0.62,"kl":"nan"}}'
    """
    strict = {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }
    text = encode({"step": step, "metrics": strict}).decode().rstrip()
    if not text.isascii() and _glyph(text, "", encoding) == "":
        text = json.dumps(json.loads(text), separators=(",", ":"))  # escapes all non-ASCII characters
    return f"metrics_tag: {text}"


def closing(
    status: str, step: int, total: int | None, seconds: float, *, error: str | None, encoding: str, width: int
) -> Line:
    """The last line: the final status, the step, the duration, and the error if there is one.

    >>> plain(closing("failed", 90, 145, 61, error="RuntimeError: out of memory", encoding="utf-8", width=80))
    'failed at step 90/145 after 1 min 1 s: RuntimeError: out of memory'
    """
    detail = f" at step {step}{_of(total)} after {duration(max(seconds, 0.0))}"
    line = [StyledText(status, "title" if status == "finished" else "bad"), StyledText(detail)]
    room = width - cells(status + detail) - 2
    if error and room > 10:
        line.append(StyledText(f": {clip(printable(error, encoding), room, encoding)}"))
    return line


def compact(value: float) -> str:
    """A number to about three significant digits, enough to compare steps at a glance.

    >>> [compact(x) for x in (0.61999, -0.0045678, 5e-7, 512.34, 12345.6, float("nan"))]
    ['0.62', '-0.00457', '5e-07', '512.3', '12,345.6', 'nan']
    """
    return f"{value:.3g}" if abs(value) < 100 and value != int(value) else number(value)


def cells(text: str) -> int:
    """The width of a text in terminal columns. Chinese, Japanese and Korean characters take two.

    >>> cells("loss"), cells("奖励")
    (4, 4)
    """
    return len(text) if text.isascii() else sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def printable(text: str, encoding: str) -> str:
    r"""A text with control characters, and characters that the encoding lacks, written as escapes.

    >>> printable("loss\x1b[2J", "utf-8"), printable("奖励", "ascii")
    ('loss\\x1b[2J', '\\u5956\\u52b1')
    """
    text = visible(text)
    return text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)


def clip(text: str, room: int, encoding: str) -> str:
    """A text cut to `room` columns, with `…` or `~` where it was cut."""
    if cells(text) <= room:
        return text
    while text and cells(text) > room - 1:
        text = text[:-1]
    return text + _glyph("…", "~", encoding)


class _Lines:
    """`step 10/145  margins 0.027  loss 0.62  ...  eta 3 min`. Each line has names, since the metrics may change."""

    def __init__(self, order: _Order, total: int | None) -> None:
        self._order = order
        self._total = total
        self._widths: dict[str, int] = {}

    def shows(self, numbers: Mapping[str, float]) -> bool:
        return bool(numbers)

    def lines(self, step: int, numbers: Mapping[str, float], eta: float | None, width: int) -> list[Line]:
        if not numbers:
            return []
        head = f"{step:>{len(str(self._total or ''))}}{_of(self._total)}"
        note = f"  eta {duration(eta)}" if eta is not None else ""
        room = width - len("step ") - len(head)
        # Space is reserved while the ETA is unknown, so that the first lines show the same metrics as later ones.
        kept_free = max(len(note), len(f"  eta {WIDEST_ETA}")) if self._total else 0
        if kept_free <= room:
            room -= kept_free
        else:
            note = ""
        line: Line = [StyledText("step "), StyledText(head, "step")]
        for name in self._order.of(numbers):
            if len(line) >= 2 * MOST_METRICS:
                break
            if name not in numbers:
                continue
            label, text = self._order.labels[name], compact(numbers[name])
            # Each metric keeps its largest width so far, so that the lines stay aligned and show the same metrics.
            self._widths[name] = kept = max(self._widths.get(name, 0), len(text))
            taken = 3 + cells(label) + kept
            if taken <= room:
                room -= taken
                line += [
                    StyledText(f"  {label} ", "note"),
                    StyledText(text.ljust(kept), _role(numbers[name], len(line) == 2)),
                ]
        return [[*line, StyledText(note, "note")]]


class _Table:
    """A header and one row per step. The header is repeated after `header_every` rows and when the columns change."""

    def __init__(self, layout: Layout, order: _Order, total: int | None, encoding: str) -> None:
        self._layout = layout
        self._fixed = layout.columns
        self._order = order
        self._total = total
        self._encoding = encoding
        self._gap = "" if layout.columns else "   "  # before the progress; fixed columns include their gap
        self._header = ""
        self._printed = 0

    def shows(self, numbers: Mapping[str, float]) -> bool:
        return any(self._value(column, numbers) is not None for column in self._fixed) if self._fixed else bool(numbers)

    def lines(self, step: int, numbers: Mapping[str, float], eta: float | None, width: int) -> list[Line]:
        if not self.shows(numbers):
            return []
        columns, has_note = self._fit(numbers, width)
        header = "Step".ljust(self._layout.step_width) + "".join(_aligned(column.title, column) for column in columns)
        header += f"{self._gap}Done  ETA" if has_note else ""
        found: list[Line] = []
        if self._printed % self._layout.header_every == 0 or header != self._header:
            self._header, self._printed = header, 0
            found.append([StyledText(header, "title")])
        self._printed += 1
        line: Line = [StyledText(f"{step} ".ljust(self._layout.step_width), "step")]
        for place, column in enumerate(columns):
            value = self._value(column, numbers)
            text = "" if value is None else _fitted(value, column)  # a missing value is left empty, not shown as 0.000
            line.append(StyledText(_aligned(text, column), _role(value, place == 0)))
        if has_note and self._total:
            share = min(max(step / self._total, 0.0), 1.0)
            line.append(
                StyledText(f"{self._gap}{int(share * 100):3d}%  {'' if eta is None else duration(eta)}", "note")
            )
        return [*found, line]

    def _fit(self, numbers: Mapping[str, float], width: int) -> tuple[list[Column], bool]:
        """The columns that fit, and whether the progress fits too."""
        room = width - self._layout.step_width
        note = len(f"{self._gap}100%  {WIDEST_ETA}") if self._total else 0
        if not self._fixed:
            # Space for the progress is reserved first, since there are usually more metrics than fit.
            kept_free = note if note + NUMBER_WIDTH + 2 <= room else 0
            return self._columns(numbers, room - kept_free), kept_free > 0
        columns = []
        for column in self._fixed:
            if column.width - 1 > room:
                break
            columns.append(column)
            room -= column.width
        return columns, 0 < note <= room and len(columns) == len(self._fixed)

    def _value(self, column: Column, numbers: Mapping[str, float]) -> float | None:
        self._order.of(numbers)
        logged = (self._order.columns.get(shown, shown) for shown in column.shows)
        return next((numbers[name] for name in logged if name in numbers), None)

    def _columns(self, numbers: Mapping[str, float], room: int) -> list[Column]:
        columns: list[Column] = []
        for name in self._order.of(numbers):
            title = clip(self._order.labels[name], LONGEST_TITLE, self._encoding)
            width = max(cells(title), NUMBER_WIDTH) + 2
            if width <= room and len(columns) < MOST_METRICS:
                columns.append(Column(title, (name,), width, is_right=True))
                room -= width
        return columns


StepText = _Lines | _Table
"""`shows(numbers)` returns whether a row has a number to show. `lines(step, numbers, eta, width)` returns its lines,
with a header if one is due; `eta` is in seconds."""


class _Order:
    """The metrics that a run has logged so far, the vital signs first, each with its shortest unique name."""

    def __init__(self, framework: str | None, algorithm: str | None, encoding: str) -> None:
        self.labels: dict[str, str] = {}
        self._run = (framework, algorithm)
        self._encoding = encoding
        self._ranked: list[str] = []
        self.columns: dict[str, str] = {}
        """By concept, the logged name whose number its column shows."""

    def of(self, numbers: Mapping[str, float]) -> list[str]:
        """Every name seen, in order."""
        if not numbers.keys() <= self.labels.keys():
            from rlvitals import catalog  # imported only when something is shown, since it takes tens of milliseconds

            names = list(dict.fromkeys([*self.labels, *numbers]))
            self.labels = {name: printable(label, self._encoding) for name, label in short_names(names).items()}
            reader = catalog.reader(*self._run, names)
            self._ranked, self.columns = reader.ordered(names), reader.columns(names)
        return self._ranked


def short_names(names: Iterable[str]) -> dict[str, str]:
    """For each name, as many of its last parts as distinguish it from all other names.

    >>> short_names(["loss", "critic/loss", "rewards/margins", "critic/score/mean"])
    {'loss': 'loss', 'critic/loss': 'critic/loss', 'rewards/margins': 'margins', 'critic/score/mean': 'score/mean'}
    """
    parts = {name: name.split("/") for name in names}
    users = Counter("/".join(split[start:]) for split in parts.values() for start in range(len(split)))
    found = {}
    for name, split in parts.items():
        shortest = 2 if split[-1] in _STATISTICS else 1
        tails = ("/".join(split[-count:]) for count in range(shortest, len(split) + 1))
        found[name] = next((tail for tail in tails if users[tail] == 1 and tail), name)
    return found


def _fitted(value: float, column: Column) -> str:
    """A number that leaves a gap to the next column, with fewer digits if needed."""
    room = column.width - (2 if column.is_right else 1)
    if column.decimals is not None:
        text = f"{value:.{column.decimals}f}"
    else:
        is_short = isinstance(value, int) or not 0.001 <= abs(value) < 100
        text = compact(value) if is_short else f"{value:#.3g}"  # trailing zeros align the numbers of a column
    for digits in (3, 2, 1):
        if len(text) <= room:
            break
        text = f"{value:.{digits}g}"
    return text


def _aligned(text: str, column: Column) -> str:
    padding = " " * (column.width - cells(text))
    return padding + text if column.is_right else text + padding


def _role(value: float | None, is_first: bool) -> Role:
    is_bad = value is not None and not math.isfinite(value)
    return "bad" if is_bad else "first" if is_first else ""


def _of(total: int | None) -> str:
    return f"/{total}" if total else ""


def _glyph(fine: str, plain: str, encoding: str) -> str:
    try:
        fine.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return plain
    return fine
