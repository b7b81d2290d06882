"""Console output: verl's step lines, the mappings TRL, transformers, trlX and OpenRLHF print, progress bars.

Lines come one at a time; a mapping may go on over several. Where a log has several kinds of rows, the most telling one
counts: verl's lines, then mappings, then what hangs on progress bars, then plain `step 10: loss=0.5` lines.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from rlvitals.store.importers.base import Fields, Notes
from rlvitals.store.importers.cells import NUMBER, flatten, number_in, unwrapped, without_markup
from rlvitals.store.importers.clock import Clock
from rlvitals.store.importers.literals import Incomplete, Malformed, parse_mapping
from rlvitals.store.importers.progress import Bar, BarRows, bar_in, is_metric_name
from rlvitals.store.importers.settings import are_settings, settings_in, settings_of

CUT_AT = 4096
"""W&B's output.log ends every longer line here."""

KINDS = ("plain", "bar", "mapping", "verl")
MAX_REREAD = 2
"""How often a line may be read in all, in search of mappings inside what is none."""
MAX_WAITING = 1500
"""Lines a printed mapping may go on for: configurations are long."""

_VERL = re.compile(r"(?:^|[\s\])])step:(\d+) - (?=\S+:)")
_RAY = re.compile(r"^\(\w[\w.:]* pid=\d+(?:, ip=[\w.:]+)?\)\s?")
_OPENING = re.compile(r"\{\s*(?=['\"])|\{\s*$")
_INITIAL = re.compile(r"""^\(?["']Initial validation metrics: \{""")
_PLAIN_STEP = re.compile(r"\b(?:global[ _])?(?:step|iter(?:ation)?|episode|update)s?\b\s*[:=#]?\s*\[?(\d+)\b", re.I)
_SAID_STEP = re.compile(r"\b(?:step|iter(?:ation)?|episode|update|rollout)s?\s*[:=#]?\s*\[?(\d+)\b[^{]{0,40}$", re.I)
_PAIR = re.compile(rf"([A-Za-z_][\w/@.-]*)\s*[=:]\s*({NUMBER})(?=[\s,;|\])]|$)", re.I)


class ConsoleReader:
    """Rows from console output, fed line by line."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.notes = Notes()
        self.kind = ""
        """Of the rows so far: the last of KINDS that was met."""
        self._waiting: list[str] = []
        self._depth = 0
        self._may_wait = True
        self._said: int | None = None
        self._clock = Clock()
        self._bars = BarRows()
        self._names: dict[str, str] = {}
        """Each name once: rows share them."""
        self._validation: Fields = {}
        """verl's first validation, until the next line tells its step."""

    def feed(self, line: str) -> list[Fields]:
        is_torn = not line.endswith("\n")  # the last one, of a process that was killed
        line = line.rstrip("\n")
        is_cut = len(line) <= CUT_AT and len(line if line.isascii() else line.encode()) in (CUT_AT - 1, CUT_AT)
        if is_cut and ("step:" in line or "{" in line):
            self.notes.count(
                f"1 line was cut at {CUT_AT} characters: what followed is missing",
                f"{{}} lines were cut at {CUT_AT} characters: what followed is missing",
            )
        rows: list[Fields] = []
        for piece in without_markup(line).split("\r"):
            text = _RAY.sub("", piece)
            if text.strip():
                rows += self._take(text, is_cut or is_torn)
        return rows

    def finish(self) -> list[Fields]:
        rows = self._give_up_waiting() + self._keep("verl", self._first_validation({}))
        rows += self._keep("bar", self._bars.finish())
        if self._clock.counted:
            self.notes.count(
                "1 row says no step and was counted on",
                "{} rows say no step and were counted on",
                self._clock.counted,
            )
        return rows

    def _take(self, text: str, is_cut: bool) -> list[Fields]:
        if self._waiting:
            return self._take_waiting(text)
        if self._may_wait and _INITIAL.match(text):
            self._waiting = [text]
            return []
        said = settings_in(text, is_beginning=not self.kind or self._clock.has_ended)
        if said:
            self.config.update(said)
            if "Total" in text and "max_steps" in said:
                self._clock.announce(said["max_steps"])
        verl = _VERL.search(text)
        if verl:
            row = self._verl_row(int(verl[1]), text[verl.end() :], is_cut)
            return self._keep("verl", [*self._first_validation(row), row])
        rows: list[Fields] = []
        bar = bar_in(text)
        if bar is not None:
            rows += self._mappings(text[: bar.start], is_cut=True) + self._see_bar(bar)
            return rows + self._mappings(text[bar.end :], is_cut)
        if _OPENING.search(text):
            return self._mappings(text, is_cut)
        plain = _PLAIN_STEP.search(text) if len(text) < 4000 else None
        if plain:
            pairs = _PAIR.findall(text[plain.end() :])
            if any(is_metric_name(name) for name, _ in pairs):
                row = {name: number_in(value) for name, value in pairs}
                rows += self._keep("plain", [{"step": int(plain[1]), **row}])
        return rows

    def _verl_row(self, step: int, text: str, is_cut: bool) -> Fields:
        row: Fields = {"step": step}
        pairs = text.split(" - ")
        for position, pair in enumerate(pairs):
            name, _, value = pair.strip().rpartition(":")
            number = number_in(value) if name else None
            is_last = position == len(pairs) - 1
            if is_last and is_cut and not value.endswith(")"):
                number = None  # half a number is a number too
            if number is not None:
                row[self._names.setdefault(name, name)] = number
            elif not is_last:
                self.notes.count("1 value is no number and was left out", "{} values are no numbers and were left out")
        return row

    # Mappings, on one line or over several

    def _mappings(self, text: str, is_cut: bool) -> list[Fields]:
        rows: list[Fields] = []
        opening = _OPENING.search(text) if "{" in text else None
        patience = MAX_REREAD * len(text)
        while opening:
            try:
                found, end = parse_mapping(text, opening.start())
            except Incomplete as error:
                if is_cut or not self._may_wait:
                    return rows + self._take_mapping(error.whole, _step_before(text, opening.start()))
                self._waiting = [text[opening.start() :].rstrip()]
                self._said = _step_before(text, opening.start())
                self._depth = _depth(self._waiting[0])
                return rows
            except Malformed as error:
                # A mapping inside may be whole; but a text of openings alone is not read again from each of them.
                patience -= error.at - opening.start()
                end = opening.start() + 1 if patience > 0 else max(error.at, opening.start() + 1)
            else:
                rows += self._take_mapping(found, _step_before(text, opening.start()))
            opening = _OPENING.search(text, end)
        return rows

    def _take_waiting(self, text: str) -> list[Fields]:
        if _INITIAL.match(self._waiting[0]):
            self._waiting.append(text)
            if text.rstrip().endswith(('}")', "}')")):
                return self._initial_validation()
            return self._give_up_waiting() if len(self._waiting) > MAX_WAITING else []
        starts_anew = (
            _VERL.search(text)
            or ("%|" in text and bar_in(text) is not None)
            or text.startswith(("{'", '{"'))
            or (self._waiting == ["{"] and not text.lstrip().startswith(("'", '"')))  # a line of code, most likely
        )
        if starts_anew or len(self._waiting) > MAX_WAITING:
            return self._give_up_waiting() + self._take(text, is_cut=False)
        self._waiting.append(text)
        self._depth += _depth(text)
        if self._depth > 0:
            return []
        for glue in ("\n", ""):  # wrapped between words, or by a terminal in the middle of one
            try:
                found, _ = parse_mapping(glue.join(self._waiting))
            except Malformed:
                continue
            self._waiting = []
            return self._take_mapping(found, self._said)
        return self._give_up_waiting()

    def _give_up_waiting(self) -> list[Fields]:
        """What looked like a mapping is none: its other lines may hold rows of their own."""
        lines, self._waiting = self._waiting[1:], []
        rows: list[Fields] = []
        before, self._may_wait = self._may_wait, False  # a text full of openings is not read again and again
        for line in lines:
            rows += self._take(line, is_cut=False)
        self._may_wait = before
        return rows

    def _initial_validation(self) -> list[Fields]:
        """It is pretty-printed by verl as one text in pieces."""
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
        """The first validation as a row; the step line that says it once more, often cut, is completed with it."""
        validation, self._validation = self._validation, {}
        if not validation:
            return []
        if validation.keys() & row.keys():
            for name, value in validation.items():
                row.setdefault(name, value)
            return []
        return [{"step": row.get("step", 1) - 1, **validation}]

    def _take_mapping(self, found: dict[Any, Any], said: int | None) -> list[Fields]:
        found = unwrapped(found)
        row = {self._names.setdefault(name, name): value for name, value in flatten(found).items()}
        if not is_metrics(found, row):
            self.config.update(settings_of(found))
            return []
        stamped = self._clock.stamp(row, said)
        if self._clock.total is not None:
            self.config["max_steps"] = self._clock.total
        return self._keep("mapping", [stamped])

    def _see_bar(self, bar: Bar) -> list[Fields]:
        self._clock.see(bar)
        if "train" in bar.what.lower():  # "Training Progress" and the like say what they count
            self.config.setdefault("max_steps", bar.total)
        return self._keep("bar", self._bars.take(bar))

    def _keep(self, kind: str, rows: list[Fields]) -> list[Fields]:
        """Mark rows with their kind; `choose` keeps the most telling one."""
        if rows and (not self.kind or KINDS.index(kind) > KINDS.index(self.kind)):
            self.kind = kind
        for row in rows:
            row[KIND] = kind
        return rows


KIND = "\x00kind"


def choose(reader: ConsoleReader, rows: list[Fields]) -> list[Fields]:
    """The rows of the most telling kind, without the mark."""
    return [row for row in rows if row.pop(KIND) == reader.kind]


def is_metrics(found: dict[Any, Any], row: Fields) -> bool:
    """Whether a printed mapping is a row of metrics rather than settings or a sample."""
    if not any(map(is_metric_name, row)) or are_settings(found):
        return False
    texts: set[str] = set()
    flatten(found, texts)
    return len(texts) * 4 <= len(row)


def _step_before(text: str, at: int) -> int | None:
    """The step that the text before a mapping says, as in `Global step 5: {...}`."""
    said = _SAID_STEP.search(text[max(0, at - 200) : at])
    return int(said[1]) if said else None


def _depth(text: str) -> int:
    return text.count("{") - text.count("}")
