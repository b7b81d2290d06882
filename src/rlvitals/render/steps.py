"""One logged step as text for a console: a compact line, a row of a table, or a line of JSON.

Owns the layouts and how they fit a width. Knows no stream and no clock: what is printed, when and where, is decided in
`capture.console`. A text is a list of pieces with roles, so that the same line can be plain or coloured. Nothing here
imports rich: a trainer that prints plain lines does not pay for it.
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
"""What a piece of a line is, for those who colour it. `first`: the most vital sign; `bad`: a number that is none."""


class Piece(NamedTuple):
    """A stretch of text in one role."""

    text: str
    role: Role = ""


Line = list[Piece]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    shows: tuple[str, ...]
    """Catalogue ids or logged names; the first one a row has is shown."""
    width: int = 9
    """The gap to its neighbour included."""
    decimals: int | None = None
    """None: about three significant digits."""
    is_right: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """What is shown of a step, and how often."""

    columns: tuple[Column, ...] = ()
    """Empty: the algorithm's vital signs, then whatever else is logged, as many as fit."""
    step_width: int = 9
    every: int = 1
    """Every so many steps."""
    header_every: int = 20
    """Lines from header to header."""


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
"""By name. `kto` is the KTO guide's table to the character; one more is one more entry."""

MOST_METRICS = 10
"""A line with more is a wall, however wide the terminal."""

LONGEST_TITLE = 20
NUMBER_WIDTH = 8
WIDEST_ETA = "59 min 59 s"

_STATISTICS = frozenset({"mean", "avg", "max", "min", "std", "var", "sum", "median", "total", "p50", "p90", "p99"})
"""Last parts of a name that say nothing alone: `critic/score/mean` is `score/mean`, not `mean`."""


def step_text(
    layout: Layout,
    *,
    as_table: bool = False,
    algorithm: str | None = None,
    framework: str | None = None,
    total: int | None = None,
    encoding: str,
) -> StepText:
    """What turns steps into lines, one after the other, and remembers what keeps them aligned. A layout with columns
    is always a table; the others are where `as_table` asks for it.
    """
    order = _Order(framework, algorithm, encoding)
    return _Table(layout, order, total, encoding) if layout.columns or as_table else _Lines(order, total)


def plain(line: Line) -> str:
    """A line without its roles."""
    return "".join(piece.text for piece in line).rstrip()


def json_line(step: int, metrics: Mapping[str, Any], encoding: str) -> str:
    """ROLL's stdout form: one line, strict JSON behind the tag it is found by. Non-finite numbers are texts.

    >>> json_line(10, {"loss": 0.62, "kl": float("nan")}, "utf-8")
    'metrics_tag: {"step":10,"metrics":{"loss":0.62,"kl":"nan"}}'
    """
    strict = {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }
    text = encode({"step": step, "metrics": strict}).decode().rstrip()
    if not text.isascii() and _glyph(text, "", encoding) == "":
        text = json.dumps(json.loads(text), separators=(",", ":"))  # the same, with every other letter escaped
    return f"metrics_tag: {text}"


def closing(
    status: str, step: int, total: int | None, seconds: float, *, error: str | None, encoding: str, width: int
) -> Line:
    """The last line: how the run ended, where, after how long.

    >>> plain(closing("failed", 90, 145, 61, error="RuntimeError: out of memory", encoding="utf-8", width=80))
    'failed at step 90/145 after 1 min 1 s: RuntimeError: out of memory'
    """
    said = f" at step {step}{_of(total)} after {duration(max(seconds, 0.0))}"
    line = [Piece(status, "title" if status == "finished" else "bad"), Piece(said)]
    room = width - cells(status + said) - 2
    if error and room > 10:
        line.append(Piece(f": {clip(printable(error, encoding), room, encoding)}"))
    return line


def compact(value: float) -> str:
    """A number to about three significant digits: what tells one step from the next at a glance.

    >>> [compact(x) for x in (0.61999, -0.0045678, 5e-7, 512.34, 12345.6, float("nan"))]
    ['0.62', '-0.00457', '5e-07', '512.3', '12,345.6', 'nan']
    """
    return f"{value:.3g}" if abs(value) < 100 and value != int(value) else number(value)


def cells(text: str) -> int:
    """The columns a text takes in a terminal; Chinese, Japanese and Korean characters take two.

    >>> cells("loss"), cells("奖励")
    (4, 4)
    """
    return len(text) if text.isascii() else sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def printable(text: str, encoding: str) -> str:
    r"""A text that moves no cursor and that the stream can hold.

    >>> printable("loss\x1b[2J", "utf-8"), printable("奖励", "ascii")
    ('loss\\x1b[2J', '\\u5956\\u52b1')
    """
    text = visible(text)
    return text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)


def clip(text: str, room: int, encoding: str) -> str:
    """At most `room` columns of a text, with a mark where it was cut."""
    if cells(text) <= room:
        return text
    while text and cells(text) > room - 1:
        text = text[:-1]
    return text + _glyph("…", "~", encoding)


class _Lines:
    """`step 10/145  margins 0.027  loss 0.62  ...  eta 3 min`, with names because the metrics may change."""

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
        # Its place is kept while it is unknown, or the first line would be another than the second.
        kept_free = max(len(note), len(f"  eta {WIDEST_ETA}")) if self._total else 0
        if kept_free <= room:
            room -= kept_free
        else:
            note = ""
        line: Line = [Piece("step "), Piece(head, "step")]
        for name in self._order.of(numbers):
            if len(line) >= 2 * MOST_METRICS:
                break
            if name not in numbers:
                continue
            label, text = self._order.labels[name], compact(numbers[name])
            # Each keeps the widest it has been, so that lines stay below each other and none comes and goes.
            self._widths[name] = kept = max(self._widths.get(name, 0), len(text))
            taken = 3 + cells(label) + kept
            if taken <= room:
                room -= taken
                line += [Piece(f"  {label} ", "note"), Piece(text.ljust(kept), _role(numbers[name], len(line) == 2))]
        return [[*line, Piece(note, "note")]]


class _Table:
    """A header, and a row a step below it; the header comes again after a while, and when the columns change."""

    def __init__(self, layout: Layout, order: _Order, total: int | None, encoding: str) -> None:
        self._layout = layout
        self._fixed = layout.columns
        self._order = order
        self._total = total
        self._encoding = encoding
        self._gap = "" if layout.columns else "   "  # before the progress; columns bring theirs
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
            found.append([Piece(header, "title")])
        self._printed += 1
        line: Line = [Piece(f"{step} ".ljust(self._layout.step_width), "step")]
        for place, column in enumerate(columns):
            value = self._value(column, numbers)
            text = "" if value is None else _fitted(value, column)  # missing is missing, not 0.000
            line.append(Piece(_aligned(text, column), _role(value, place == 0)))
        if has_note and self._total:
            share = min(max(step / self._total, 0.0), 1.0)
            line.append(Piece(f"{self._gap}{int(share * 100):3d}%  {'' if eta is None else duration(eta)}", "note"))
        return [*found, line]

    def _fit(self, numbers: Mapping[str, float], width: int) -> tuple[list[Column], bool]:
        """The columns there is room for, and whether there is room for the progress too."""
        room = width - self._layout.step_width
        note = len(f"{self._gap}100%  {WIDEST_ETA}") if self._total else 0
        if not self._fixed:
            # Progress first: of the metrics there are always more than fit.
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
"""`shows(numbers)`: whether a row has anything for it. `lines(step, numbers, eta, width)`: its lines, a header among
them where one is due; `eta` in seconds."""


class _Order:
    """The metrics a run has shown so far, the vital signs first, each with the shortest name that is its alone."""

    def __init__(self, framework: str | None, algorithm: str | None, encoding: str) -> None:
        self.labels: dict[str, str] = {}
        self._run = (framework, algorithm)
        self._encoding = encoding
        self._ranked: list[str] = []
        self.columns: dict[str, str] = {}
        """By concept, the name that may stand in its column."""

    def of(self, numbers: Mapping[str, float]) -> list[str]:
        """Every name seen, in order."""
        if not numbers.keys() <= self.labels.keys():
            from rlvitals import catalog  # tens of milliseconds, so not before something is shown

            names = list(dict.fromkeys([*self.labels, *numbers]))
            self.labels = {name: printable(label, self._encoding) for name, label in short_names(names).items()}
            reader = catalog.reader(*self._run, names)
            self._ranked, self.columns = reader.ordered(names), reader.columns(names)
        return self._ranked


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Each name's last parts, as many as tell it from all the others.

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
    """A number that leaves a gap to its neighbour, with fewer digits where it must."""
    room = column.width - (2 if column.is_right else 1)
    if column.decimals is not None:
        text = f"{value:.{column.decimals}f}"
    else:
        is_short = isinstance(value, int) or not 0.001 <= abs(value) < 100
        text = compact(value) if is_short else f"{value:#.3g}"  # below each other, zeros at the end help
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
