"""Console output: verl's step lines; mappings printed by TRL, transformers, trlX and OpenRLHF; drawn tables; progress
bars; the lines of any training loop. Also reads such output inside the JSON log of a notebook service.

Lines arrive one at a time; a mapping may span several. If a log has several kinds of rows, the most reliable kind with
enough rows is used: verl's lines, then mappings, drawn tables, values on progress bars, and last lines such as `step
10: loss=0.5`, which `loose_rows` distinguishes from prose.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rlvitals.importers.base import LineImporter, text_in
from rlvitals.importers.cells import NUMBER, flatten, number_in, unwrapped, without_markup
from rlvitals.importers.jsonl import parse_lenient
from rlvitals.importers.literals import Incomplete, Malformed, parse_mapping
from rlvitals.importers.loose_rows import LooseReading, LooseRows
from rlvitals.importers.padding import family
from rlvitals.importers.pairs import TELLING, read_pairs
from rlvitals.importers.settings import are_settings, settings_in, settings_of
from rlvitals.records import Fields
from rlvitals.splits import is_held_out

CUT_AT = 4096
"""W&B's output.log cuts longer lines at this length."""

KINDS = ("line", "bar", "table", "mapping", "verl")
"""From the least to the most reliable."""
ENOUGH = 30
"""A kind with this many rows is used, however many rows a less reliable kind has."""
EXCEPTION = 20
"""A kind with fewer rows than one in this many of another kind is an exception, such as the final summary or a printed
sample.
"""
MAX_REREAD = 2
"""How many times a line's length may be reread in total when searching for mappings inside text that is not one."""
MAX_SEARCHED = 100_000
"""Characters of a line that count towards this limit."""
MAX_WAITING = 1500
"""Lines that a printed mapping may span. Configurations are long."""

_VERL = re.compile(r"(?:^|[\s\])])step:(\d+) - (?=\S+:)")
_RAY = re.compile(r"^\(\w[\w.:]* pid=\d+(?:, ip=[\w.:]+)?\)\s?")
_OPENING = re.compile(r"\{\s*(?=['\"])|\{\s*$")
_INITIAL = re.compile(r"""^\(?["']Initial validation metrics: \{""")
_STATED_STEP = re.compile(r"\b(?:step|iter(?:ation)?|episode|update|rollout)s?\s*[:=#]?\s*\[?(\d+)\b[^{]{0,40}$", re.I)
_BAR = re.compile(r"\d{1,3}%\|[^|\r\n]*\|\s*(\d+)/(\d+)(?=\s|\[|$)")
_REST = re.compile(r"\s*\[([^\[\]{}]*)\]?")
_POSTFIX = re.compile(rf"([A-Za-z_][\w/@.-]*)\s*=\s*({NUMBER})(?=[,\]\s]|$)", re.IGNORECASE)
_DESCRIBED = re.compile(rf"([A-Za-z_][\w/@.-]*):\s*({NUMBER})(?=\s*[|\]])", re.IGNORECASE)
_NOT_TRAINING = re.compile(
    r"load|download|map\b|generat|eval|valid|token|shard|filter|process|fetch|compil|captur|convert|upload|rollout|make_exp|warm|adding",
    re.IGNORECASE,
)
_METRIC = re.compile(  # names in printed mappings, where samples and settings are more common than in lines
    r"loss|reward|return|kl\b|_kl|entropy|grad_norm|gradnorm|learning_rate|\blr\b|accurac|margin|score|advantage|ppo|"
    r"logps|train_runtime|perplexity|clip|奖励|损失|回报|熵|наград|потер",
    re.IGNORECASE,
)
_STEPS = ("step", "global_step", "train/global_step", "training/global_step", "system/step")


_KindRow = tuple[str, Fields]
"""A row and its kind, one of KINDS."""


class ConsoleImporter(LineImporter):
    """Accepts any text, so it is tried last."""

    name = "console"
    description = "console output of verl, TRL and transformers, trlX, OpenRLHF; any loop's `step=10 loss=0.5` lines"
    marks: ClassVar[tuple[str, ...]] = ("files/output.log",)  # as W&B keeps it
    names: ClassVar[tuple[str, ...]] = ("output.log",)

    def __init__(self) -> None:
        super().__init__()
        self._kinds: list[str] = []
        """The kind of each returned row, one of KINDS."""
        self._counts: Counter[str] = Counter()
        self._loose = LooseRows()
        self._remarks: tuple[str, ...] = ()
        self._waiting: list[str] = []
        self._depth = 0
        self._may_wait = True
        self._waiting_step: int | None = None
        self._clock = StepClock()
        self._bars = BarRows()
        self._names: dict[str, str] = {}
        """Each name is stored once and shared by all rows."""
        self._validation: Fields = {}
        """verl's first validation, until the next line gives its step."""

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        return bool(text_in(head))

    def feed(self, line: str) -> list[Fields]:
        is_torn = not line.endswith("\n")  # the last line, if the process was killed
        line = line.rstrip("\n").replace("\x00", "")  # left over when a shell appends UTF-16 to other text
        is_cut = len(line) <= CUT_AT and len(line if line.isascii() else line.encode()) in (CUT_AT - 1, CUT_AT)
        if is_cut and ("step:" in line or "{" in line):
            self.notes.count(
                f"1 line was cut at {CUT_AT} characters: what followed is missing",
                f"{{}} lines were cut at {CUT_AT} characters: what followed is missing",
            )
        rows: list[_KindRow] = []
        for piece in without_markup(line).split("\r"):
            text = _RAY.sub("", piece)
            if text.strip():
                rows += self._take(text, is_cut or is_torn)
        return self._given(rows)

    def finish(self) -> list[Fields]:
        rows = self._give_up_waiting() + _of_kind("verl", self._first_validation({}))
        rows += _of_kind("bar", self._bars.finish())
        self._loose.finish()
        if self._clock.counted:
            self.notes.count(
                "1 row says no step and was counted on",
                "{} rows say no step and were counted on",
                self._clock.counted,
            )
        return self._given(rows)

    def settled(self, rows: list[Fields]) -> list[Fields]:
        """The rows of the most reliable kind that is not an exception."""
        found: dict[str, LooseReading] = {kind: LooseReading([]) for kind in KINDS}
        for kind, row in zip(self._kinds, rows, strict=True):
            found[kind].rows.append(row)
        if not self._is_decided:
            found |= {"table": self._loose.tables(), "line": self._loose.lines()}
        most = max(len(outcome.rows) for outcome in found.values())
        kind = next(
            kind
            for kind in reversed(KINDS)
            if len(found[kind].rows) >= ENOUGH or len(found[kind].rows) * EXCEPTION >= most
        )
        chosen = found[kind]
        if kind == "bar":
            chosen = chosen._replace(rows=_with_evaluations(chosen.rows, found["line"].rows))
        self.format = "verl" if kind == "verl" and chosen.rows else ConsoleImporter.name
        for remark in self._remarks:
            self.notes.take_back(remark)
        self._remarks = chosen.remarks
        for remark in self._remarks:
            self.notes.say(remark)
        if chosen.total is not None:
            self.config.setdefault("max_steps", chosen.total)
        return chosen.rows

    def seen(self) -> str:
        return self._loose.seen()

    def _given(self, rows: list[_KindRow]) -> list[Fields]:
        self._kinds += [kind for kind, _ in rows]
        self._counts.update(kind for kind, _ in rows)
        return [row for _, row in rows]

    def _take(self, text: str, is_cut: bool) -> list[_KindRow]:
        if self._waiting:
            return self._take_waiting(text)
        if self._may_wait and _INITIAL.match(text):
            self._waiting = [text]
            return []
        settings = settings_in(text, is_beginning=not (self._kinds or self._loose.has_line) or self._clock.has_ended)
        if settings:
            self.config.update(settings)
            if "Total" in text and "max_steps" in settings:
                self._clock.announce(settings["max_steps"])
        verl = _VERL.search(text)
        if verl:
            row = self._verl_row(int(verl[1]), text[verl.end() :], is_cut)
            return _of_kind("verl", [*self._first_validation(row), row])
        rows: list[_KindRow] = []
        bar = bar_in(text)
        if bar is not None:
            rows += self._mappings(text[: bar.start], is_cut=True) + self._see_bar(bar)
            return rows + self._mappings(text[bar.end :], is_cut)
        if _OPENING.search(text):
            return self._mappings(text, is_cut)
        if not self._is_decided:
            self._loose.take(_without_last_word(text) if is_cut else text)
        return []

    @property
    def _is_decided(self) -> bool:
        """Whether there are rows that take precedence over any loose line."""
        return self._counts["verl"] > 0 or self._counts["mapping"] >= ENOUGH

    def _verl_row(self, step: int, text: str, is_cut: bool) -> Fields:
        row: Fields = {"step": step}
        pairs = text.split(" - ")
        for position, pair in enumerate(pairs):
            name, _, value = pair.strip().rpartition(":")
            number = number_in(value) if name else None
            is_last = position == len(pairs) - 1
            if is_last and is_cut and not value.endswith(")"):
                number = None  # a cut number may still parse as a number
            if number is not None:
                row[self._names.setdefault(name, name)] = number
            elif not is_last:
                self.notes.count(
                    "1 value is not a number and was left out", "{} values are not numbers and were left out"
                )
        return row

    # Mappings on one line or across several lines

    def _mappings(self, text: str, is_cut: bool) -> list[_KindRow]:
        rows: list[_KindRow] = []
        opening = _OPENING.search(text) if "{" in text else None
        patience = MAX_REREAD * min(len(text), MAX_SEARCHED)
        while opening:
            try:
                found, end = parse_mapping(text, opening.start())
            except Incomplete as error:
                if is_cut or not self._may_wait:
                    return rows + self._take_mapping(error.whole, _step_before(text, opening.start()))
                self._waiting = [text[opening.start() :].rstrip()]
                self._waiting_step = _step_before(text, opening.start())
                self._depth = _depth(self._waiting[0])
                return rows
            except Malformed as error:
                # An inner mapping may be complete. The budget prevents rereading text from each of many opening braces.
                patience -= error.at - opening.start()
                end = opening.start() + 1 if patience > 0 else max(error.at, opening.start() + 1)
            else:
                rows += self._take_mapping(found, _step_before(text, opening.start()))
            opening = _OPENING.search(text, end)
        return rows

    def _take_waiting(self, text: str) -> list[_KindRow]:
        if _INITIAL.match(self._waiting[0]):
            self._waiting.append(text)
            if text.rstrip().endswith(('}")', "}')")):
                return self._initial_validation()
            return self._give_up_waiting() if len(self._waiting) > MAX_WAITING else []
        starts_new = (
            _VERL.search(text)
            or ("%|" in text and bar_in(text) is not None)
            or text.startswith(("{'", '{"'))
            or (self._waiting == ["{"] and not text.lstrip().startswith(("'", '"')))  # most likely a line of code
        )
        if starts_new or len(self._waiting) > MAX_WAITING:
            return self._give_up_waiting() + self._take(text, is_cut=False)
        self._waiting.append(text)
        self._depth += _depth(text)
        if self._depth > 0:
            return []
        for glue in ("\n", ""):  # wrapped between words, or by a terminal within a word
            try:
                found, _ = parse_mapping(glue.join(self._waiting))
            except Malformed:
                continue
            self._waiting = []
            return self._take_mapping(found, self._waiting_step)
        return self._give_up_waiting()

    def _give_up_waiting(self) -> list[_KindRow]:
        """The text was not a mapping. Its other lines may contain rows."""
        lines, self._waiting = self._waiting[1:], []
        rows: list[_KindRow] = []
        before, self._may_wait = self._may_wait, False  # do not reread text with many opening braces
        for line in lines:
            rows += self._take(line, is_cut=False)
        self._may_wait = before
        return rows

    def _initial_validation(self) -> list[_KindRow]:
        """Parse the initial validation, which verl pretty-prints as one text in pieces."""
        text, self._waiting = "\n".join(self._waiting), []
        try:
            printed = ast.literal_eval(text)
            found, _ = parse_mapping(printed, printed.index("{"))
        except (ValueError, SyntaxError, TypeError, AttributeError, MemoryError, RecursionError):
            self.notes.say("the initial validation could not be read")
            return []
        self._validation = flatten(found)
        return []

    def _first_validation(self, row: Fields) -> list[Fields]:
        """The first validation as a row. If the next step line repeats it, that line is completed instead."""
        validation, self._validation = self._validation, {}
        if not validation:
            return []
        if validation.keys() & row.keys():
            for name, value in validation.items():
                row.setdefault(name, value)
            return []
        return [{"step": row.get("step", 1) - 1, **validation}]

    def _take_mapping(self, found: dict[Any, Any], step_before: int | None) -> list[_KindRow]:
        found = unwrapped(found)
        row = {self._names.setdefault(name, name): value for name, value in flatten(found).items()}
        if not is_metrics(found, row):
            self.config.update(settings_of(found))
            return []
        stamped = self._clock.stamp(row, step_before)
        if self._clock.total is not None:
            self.config["max_steps"] = self._clock.total
        return _of_kind("mapping", [stamped])

    def _see_bar(self, bar: Bar) -> list[_KindRow]:
        self._clock.see(bar)
        if bar.may_be_training:
            self._loose.see_step(bar.done, bar.total)
        if bar.may_be_training and "train" in bar.what.lower():  # e.g. "Training Progress"
            self.config.setdefault("max_steps", bar.total)
        return _of_kind("bar", self._bars.take(bar))


class NotebookLogImporter(ConsoleImporter):
    """The log of a notebook service: a JSON list of output pieces, one piece per line."""

    name = "notebook log"
    description = "the logs notebook services keep"
    marks: ClassVar[tuple[str, ...]] = ()
    names: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.format = ConsoleImporter.name
        self._partial_lines: dict[Any, str] = {}

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        text = text_in(head)
        return text.startswith("[") and '"stream_name"' in text.partition("\n")[0]

    def feed(self, line: str) -> list[Fields]:
        line = line.strip().lstrip("[,").rstrip("],")
        if not line:
            return []
        try:
            piece = parse_lenient(line)
        except ValueError:
            self.notes.count("1 line is not JSON and was skipped", "{} lines are not JSON and were skipped")
            return []
        if not isinstance(piece, dict) or not isinstance(piece.get("data"), str):
            return []
        stream = piece.get("stream_name")
        *lines, self._partial_lines[stream] = (self._partial_lines.get(stream, "") + piece["data"]).split("\n")
        return [row for whole in lines for row in super(NotebookLogImporter, self).feed(f"{whole}\n")]

    def finish(self) -> list[Fields]:
        rows = [
            row for partial in self._partial_lines.values() for row in super(NotebookLogImporter, self).feed(partial)
        ]
        return rows + super().finish()


def _of_kind(kind: str, rows: list[Fields]) -> list[_KindRow]:
    return [(kind, row) for row in rows]


def _without_last_word(text: str) -> str:
    """A line that was cut, without its last word, which may be an incomplete number."""
    words = text.rsplit(None, 1)
    return words[0] if len(words) > 1 else ""


def _with_evaluations(rows: list[Fields], lines: list[Fields]) -> list[Fields]:
    """The rows from progress bars, and the evaluations printed between the bars, as trlX does."""
    found = [{name: line[name] for name in line if name in ("step", "epoch") or is_held_out(name)} for line in lines]
    evaluations = [row for row in found if not row.keys() <= {"step", "epoch"}]
    return sorted([*rows, *evaluations], key=lambda row: row["step"]) if evaluations else rows


def is_metrics(found: dict[Any, Any], row: Fields) -> bool:
    """Whether a printed mapping is a row of metrics rather than settings or a sample."""
    if not any(map(_METRIC.search, row)) or are_settings(found):
        return False
    texts: set[str] = set()
    flatten(found, texts)
    return len(texts) * 4 <= len(row)


def _step_before(text: str, at: int) -> int | None:
    """The step in the text before a mapping, as in `Global step 5: {...}`."""
    match = _STATED_STEP.search(text[max(0, at - 200) : at])
    return int(match[1]) if match else None


def _depth(text: str) -> int:
    return text.count("{") - text.count("}")


class Bar(NamedTuple):
    """One printed state of a progress bar."""

    what: str
    done: int
    total: int
    numbers: Fields
    """Numbers shown with the bar: OpenRLHF's postfix, trlX's description."""
    start: int
    end: int
    """The bar's start and end within the line."""

    @property
    def may_be_training(self) -> bool:
        return not _NOT_TRAINING.search(self.what)


def bar_in(text: str) -> Bar | None:
    """The last progress bar in a piece of a line.

    >>> bar_in("Train epoch [1/1]:  10%|█ | 5/50 [00:12<01:40, 2.3s/it, policy_loss=0.1, kl=nan]")[:4]
    ('Train epoch [1/1]:', 5, 50, {'policy_loss': 0.1, 'kl': nan})
    """
    if "%|" not in text:
        return None
    matches = list(_BAR.finditer(text))
    if not matches:
        return None
    match = matches[-1]
    begin = matches[-2].end() if len(matches) > 1 else 0
    what = text[begin : match.start()].strip()
    rest = _REST.match(text, match.end())
    numbers = {name: number_in(value) for name, value in _POSTFIX.findall(rest[1])} if rest else {}
    if not numbers and what.startswith("["):
        numbers = {name: number_in(value) for name, value in _DESCRIBED.findall(what)}
    for piece in (what, rest[1] if rest else "") if not numbers else ():
        reading = read_pairs(piece)
        numbers |= reading.numbers if reading and reading.is_clean else {}
    return Bar(what, int(match[1]), int(match[2]), numbers, match.start(), rest.end() if rest else match.end())


class BarRows:
    """Rows from progress bars that show numbers: one row per bar position, with the last numbers shown there."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._offset = 0

    def take(self, bar: Bar) -> list[Fields]:
        """Process one printed bar; returns the row of the previous position if the bar has moved on."""
        before = self._bar
        if not bar.may_be_training or not (bar.numbers or before):
            return []
        if before is None or (bar.done, bar.total) == (before.done, before.total):
            self._bar = bar if bar.numbers else before
            return []
        row = self._row(before)
        if bar.done <= before.done:  # the bar restarted: an inner bar
            self._offset += before.done
        self._bar = bar
        return row

    def finish(self) -> list[Fields]:
        bar, self._bar = self._bar, None
        return self._row(bar) if bar else []

    def _row(self, bar: Bar) -> list[Fields]:
        is_row = any(map(TELLING.search, bar.numbers))
        return [{"step": self._offset + bar.done, **bar.numbers}] if is_row else []


class StepClock:
    """Assigns steps to rows: the row's own step, the position of the training's progress bar, or the last step plus
    one.

    Steps may decrease when a training restarts.
    """

    def __init__(self) -> None:
        self.counted = 0
        """Rows with neither their own step nor a moving bar."""
        self._last = 0
        self._bars: dict[int, Bar] = {}
        self._total: int | None = None
        self._epoch = 0.0
        self.has_ended = False
        """Whether the summary of a finished training was the last row."""

    @property
    def total(self) -> int | None:
        """The training's total steps, once a banner or a bar that moves with the rows has stated it."""
        return self._total

    def announce(self, total: int) -> None:
        """Called when a banner announces a training with this many steps."""
        self._begin()
        self._total = total

    def see(self, bar: Bar) -> None:
        """Record a progress bar. Which bar is the training's is decided when rows arrive."""
        if bar.may_be_training:
            self._bars[bar.total] = bar

    def stamp(self, row: Fields, step_before: int | None = None) -> Fields:
        """The row with its step; `step_before` is the step in the text before it."""
        is_summary = "train_runtime" in row
        is_train = not is_summary and not {family(name) for name in row} <= {"eval", "axis"}
        epoch = row.get("epoch")
        if is_train and isinstance(epoch, int | float):
            if epoch < self._epoch:
                self._begin()
            self._epoch = epoch
        if is_train and self.has_ended:
            self._begin()
        self.has_ended = is_summary
        own = next((row[name] for name in _STEPS if isinstance(row.get(name), int | float)), step_before)
        if own is not None and float(own).is_integer():
            self._last = int(own)
        elif is_train:
            self._count()
        row.pop("step", None)
        return {"step": self._last, **row}

    def _count(self) -> None:
        bar = self._training_bar()
        if bar is not None and bar.done > self._last:
            self._last = bar.done
        else:
            self._last += 1
            self.counted += 1

    def _training_bar(self) -> Bar | None:
        """The bar with the announced total; without an announcement, the longest bar that is in progress."""
        if self._total is None:
            moving = [bar for bar in self._bars.values() if 0 < bar.done < bar.total]
            if moving:
                self._total = max(moving, key=lambda bar: bar.total).total
        return None if self._total is None else self._bars.get(self._total)

    def _begin(self) -> None:
        self._last, self._bars, self._total, self._epoch, self.has_ended = 0, {}, None, 0.0, False
