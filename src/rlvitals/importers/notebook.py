"""Jupyter notebooks: trainings in the saved outputs of their cells. Nothing is run.

An output shows a part of a training: the table a trainer keeps up to date, a frame of pandas, rows printed as text. Parts
that show the same steps, or go on where another ended, are one training. A notebook may hold several; the one most
likely meant is read, and the notes name the others.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.errors import NotALog
from rlvitals.importers.base import Fields, Importer, Notes, named, text_in, text_of
from rlvitals.importers.cells import number_in
from rlvitals.importers.console import Bar, ConsoleImporter, bar_in
from rlvitals.importers.jsonl import parse_lenient
from rlvitals.importers.notebook_code import CodeReader, Trainer
from rlvitals.importers.notebook_tables import ELLIPSES, Table, html_tables, text_tables
from rlvitals.importers.padding import drop_padding
from rlvitals.importers.steps import STEP_NAMES, StepFinder, count_epochs, restarts
from rlvitals.importers.table import NOTHING, ROW_NUMBERS, TableImporter, is_table

FEWEST_ROWS = 8
"""With fewer a run is not judged: a training that has them comes before one that has not."""

FEWEST_PRINTED = 3
"""Fewer printed rows are a result rather than a training."""

MOST_IN_A_CELL = 8
"""When the steps of one text begin anew more often, they count within epochs."""

AXES = frozenset({"step", "timestamp", "epoch"})

_BEGINS = re.compile(r'\{\s*"(?:cells|metadata|nbformat|nbformat_minor|worksheets)"\s*:')
_POINTER = "version https://git-lfs"
_METRIC = re.compile(r"loss|reward|return|\bkl\b|_kl|entropy|grad_norm|learning_rate|accurac|margin|logps|advantage", re.I)
_TELLING = re.compile(r"reward|\bkl\b|_kl|kl_|margin|advantage|logps|entropy|return|policy|completion|clip_?(?:frac|ratio)", re.I)
_TRAINERS = frozenset({"loss", "grad_norm", "learning_rate", "reward", "reward_std", "kl", "rewards/margins", "train_loss"})
"""Names of which three make a table without steps a training's."""
_ENDED = re.compile(r"TrainOutput\(global_step=(\d+)")
_OBJECT = re.compile(r"<[\w.]+ .*>$|<[\w.]+>$|Figure\(")
_BAR = re.compile(r"(\d{1,3}%) (?=\d+/\d+ \[)")
"""A progress bar as Colab shows that of a program: without the bar."""
_TRUNCATED = "Buffered data was truncated after reaching the output size limit"
_SUPERVISED = (None, "sft", "reward_model")


class Piece(NamedTuple):
    """One output of a cell, or a part of it."""

    kind: str
    """"stdout" and "stderr" for text that goes on in the next piece of its kind, "html", "result", "error"."""
    text: str


@dataclass(slots=True)
class Part:
    """What one output shows of a training."""

    cell: int
    rows: list[Fields]
    is_table: bool = False
    total: int | None = None
    """Steps planned, where the output says so."""
    is_over: bool = False
    """Whether its progress bar had reached the end."""
    bar: Bar | None = None
    """The progress bar of a text as it was drawn last: of those before, services keep nothing."""
    config: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def is_counted(self) -> bool:
        """Whether steps only number the rows, as the console's reader does where the text says none."""
        steps = [row["step"] for row in self.rows if _is_train(row)]
        return not self.is_table and steps != [] and steps == list(range(1, len(steps) + 1))


@dataclass(slots=True)
class Training:
    """The parts of one training, in the order of the notebook."""

    parts: list[Part]
    trainer: Trainer | None = None

    @property
    def cells(self) -> list[int]:
        return sorted({part.cell for part in self.parts})

    @property
    def rows(self) -> list[Fields]:
        if len(self.parts) == 1:
            return self.parts[0].rows
        merged: dict[int, Fields] = {}
        for part in sorted(self.parts, key=lambda part: not part.is_table):  # texts have more digits than tables
            for row in part.rows:
                merged.setdefault(row["step"], {}).update(row)
        return [merged[step] for step in sorted(merged)]

    @property
    def last(self) -> int:
        return max(row["step"] for part in self.parts for row in part.rows)

    @property
    def names(self) -> set[str]:
        return {name for part in self.parts for row in part.rows for name in row} - AXES

    def describe(self) -> str:
        """For a remark: where it is, how long, what it is."""
        where = ", ".join(str(cell) for cell in self.cells)
        what = self.trainer.algorithm if self.trainer and self.trainer.algorithm else ""
        known = named(sorted(self.names, key=lambda name: not _TELLING.search(name))[:3]) if not what else what
        return f"cell {where}, {len(self.rows)} rows, {known}"


class NotebookImporter(Importer):
    """A notebook with the outputs that were saved with it."""

    name = "notebook"
    description = "Jupyter notebooks (.ipynb) with their saved outputs"

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        text = text_in(head)
        if path.suffix == ".ipynb":
            return bool(text)
        return bool(_BEGINS.match(text)) and ('"cell_type"' in text or '"nbformat"' in text)

    def rows(self, path: Path) -> list[Fields]:
        cells = _cells(path)
        book = Book(cells)
        if not book.trainings:
            raise NotALog(path, book.why_empty())
        chosen = self._choose(path, book.trainings)
        self._describe(chosen, book)
        return chosen.rows

    def _choose(self, path: Path, trainings: list[Training]) -> Training:
        if self.part is not None:
            if not 1 <= self.part <= len(trainings):
                held = "; ".join(f"{number}: {one.describe()}" for number, one in enumerate(trainings, 1))
                raise NotALog(path, f"the notebook has no training {self.part}. It holds {held}")
            chosen = trainings[self.part - 1]
        else:
            chosen = max(reversed(trainings), key=_likelihood)
        if len(trainings) > 1:
            number = trainings.index(chosen) + 1
            others = [f"{place}: {one.describe()}" for place, one in enumerate(trainings, 1) if place != number]
            more = f"; and {len(others) - 8} more" if len(others) > 8 else ""
            self.notes.say(
                f"the notebook holds {len(trainings)} trainings. Number {number} was read ({chosen.describe()}). "
                f"The others are {'; '.join(others[:8])}{more}. To read another, add its number to the path: "
                f"{path.name}#{1 if number != 1 else 2}"
            )
        return chosen

    def _describe(self, chosen: Training, book: Book) -> None:
        trainer = chosen.trainer
        if trainer is not None:
            self.algorithm = trainer.algorithm
            self.framework = "trl" if trainer.algorithm else None
            self.config.update(
                {name: value for name, value in trainer.settings.items() if value > 0 or name in ("beta", "temperature")}
            )
        for part in chosen.parts:
            self.config.update(part.config)
            for note in part.notes:
                self.notes.say(note)
        totals = [part.total for part in chosen.parts if part.total]
        if totals:
            self.config["max_steps"] = max(totals)
        for cell in chosen.cells:
            if cell in book.errors:
                self.notes.say(f"cell {cell} ended with an error: {book.errors[cell]}")
            if cell in book.cut:
                self.notes.say(f"the output of cell {cell} was cut by the notebook service: rows are missing")


def _likelihood(training: Training) -> tuple[bool, bool, bool, int]:
    """Which training of several is meant: one of RL or preferences, long enough, that logs more than a loss."""
    algorithm = training.trainer.algorithm if training.trainer else None
    is_telling = any(map(_TELLING.search, training.names))
    rows = len(training.rows)
    return is_telling or algorithm not in _SUPERVISED, rows >= FEWEST_ROWS, is_telling, rows


# The file


def _cells(path: Path) -> list[dict[str, Any]]:
    """The cells, of any version of the format."""
    text = text_of(path)
    if text.startswith(_POINTER):
        raise NotALog(path, "it is a pointer of Git LFS, not the notebook: fetch the file with `git lfs pull`")
    try:
        document = parse_lenient(text)
    except ValueError as error:
        raise NotALog(path, f"its JSON is damaged ({error}): save the notebook again") from error
    sheets = document.get("worksheets") if isinstance(document, dict) else None
    lists = [document.get("cells") if isinstance(document, dict) else None]
    lists += [sheet.get("cells") for sheet in sheets if isinstance(sheet, dict)] if isinstance(sheets, list) else []
    found = [cell for cells in lists if isinstance(cells, list) for cell in cells if isinstance(cell, dict)]
    if not found:
        raise NotALog(path, "it is no notebook with cells")
    return found


def _text(value: object) -> str:
    """Text of the format: one text, or a list of its lines."""
    if isinstance(value, str):
        return value
    return "".join(line for line in value if isinstance(line, str)) if isinstance(value, list) else ""


def _pieces(outputs: object) -> Iterator[Piece]:
    """A cell's outputs, each in the richest form that is read. Images and widgets are passed over."""
    for output in outputs if isinstance(outputs, list) else ():
        if not isinstance(output, dict):
            continue
        kind = output.get("output_type")
        if kind == "stream":
            name = output.get("name") or output.get("stream")
            yield Piece("stderr" if name == "stderr" else "stdout", _text(output.get("text")))
        elif kind in ("error", "pyerr"):
            yield Piece("error", f"{output.get('ename')}: {output.get('evalue')}")
        else:
            data = output.get("data")
            if not isinstance(data, dict):  # before version 4 the forms were beside the type
                data = {"text/html": output.get("html"), "text/plain": output.get("text")}
            if "application/vnd.jupyter.widget-view+json" in data:
                continue
            html, plain = _text(data.get("text/html")), _text(data.get("text/plain"))
            if "<table" in html.lower():
                yield Piece("html", html)
            elif plain and not _OBJECT.match(plain[:200]):
                yield Piece("result" if kind in ("execute_result", "pyout") else "stdout", f"{plain}\n")


# From outputs to trainings


class Book:
    """The trainings that the cells of a notebook show."""

    def __init__(self, cells: Sequence[dict[str, Any]]) -> None:
        self.trainings: list[Training] = []
        self.errors: dict[int, str] = {}
        """By cell, the error it ended with."""
        self.cut: set[int] = set()
        self._cells = cells
        self._outputs = 0
        self._unlogged: Table | None = None
        """A trainer's table that ends before its first row."""
        self._seen: dict[str, None] = {}
        """The columns of tables that are no training's."""
        code = CodeReader()
        loose: list[Training] = []
        for number, cell in enumerate(cells, 1):
            if cell.get("cell_type") != "code":
                continue
            started = code.read(_text(cell.get("source", cell.get("input"))))
            pieces = list(_pieces(cell.get("outputs")))
            self._outputs += len(pieces)
            before = len(self.trainings)
            for part in self._parts(number, pieces, started[-1] if started else code.latest):
                self._take(part, loose)
            for new, training in enumerate(self.trainings[before:]):
                training.trainer = started[min(new, len(started) - 1)] if started else code.latest
        self.trainings = self.trainings or loose

    def why_empty(self) -> str:
        """What was seen, and what to do."""
        seen = f"{len(self._cells)} {'cell' if len(self._cells) == 1 else 'cells'}, "
        seen += f"{self._outputs} {'output' if self._outputs == 1 else 'outputs'}"
        if self._unlogged is not None:
            return (
                f"the trainer's table in it has no rows: it was saved at step {self._unlogged.done} of "
                f"{self._unlogged.total}, before the first were logged ({seen}). Lower logging_steps, or pass the log of "
                "the training (trainer_state.json in the trainer's output folder)"
            )
        if self._seen:
            seen += f", tables with the columns {'; '.join(list(self._seen)[:3])}"
        if not self._outputs:
            return (
                f"the notebook was saved without outputs ({seen}): run it and save it, "
                "or pass the log of the training (trainer_state.json in the trainer's output folder)"
            )
        return (
            f"no saved output of the notebook shows a training's numbers by step ({seen}): "
            "pass the log of the training (trainer_state.json in the trainer's output folder)"
        )

    def _take(self, part: Part, loose: list[Training]) -> None:
        """Add a part to the training it belongs to, or begin a new one."""
        for training in reversed(self.trainings):
            if _shows_the_same(training, part) or _goes_on(training, part):
                training.parts.append(part)
                return
        if part.is_table or sum(map(_is_train, part.rows)) >= FEWEST_PRINTED:
            self.trainings.append(Training([part]))
        elif any(name == "loss" or _TELLING.search(name) for row in part.rows for name in row):
            loose.append(Training([part]))  # a result, most likely

    def _parts(self, cell: int, pieces: list[Piece], trainer: Trainer | None) -> list[Part]:
        tables: list[Part] = []
        texts: list[Part] = []
        ended: int | None = None
        for piece in pieces:
            if piece.kind == "error":
                self.errors[cell] = " ".join(piece.text.split())[:200]
                continue
            if piece.kind == "html":
                tables += self._table_parts(cell, html_tables(piece.text))
                continue
            if _TRUNCATED in piece.text:
                self.cut.add(cell)
            if found := _ENDED.findall(piece.text):
                ended = int(found[-1])
            if piece.kind == "result":
                texts += self._text_parts(cell, [piece])
        texts += self._text_parts(cell, [piece for piece in pieces if piece.kind in ("stdout", "stderr")])
        for text in texts:
            if text.is_counted:
                _place(text, tables, ended, trainer)
        return [*tables, *texts]

    def _table_parts(self, cell: int, tables: list[Table]) -> Iterator[Part]:
        for table in tables:
            part = _read_table(cell, table)
            if part is not None:
                yield part
            elif names := [name for name in table.names if name]:
                self._seen[named(names, most=6)] = None
                if table.total is not None and not table.rows:
                    self._unlogged = table

    def _text_parts(self, cell: int, pieces: list[Piece]) -> Iterator[Part]:
        text = "".join(piece.text for piece in pieces if piece.kind != "stderr")
        if is_table(text[:20_000]):
            reader = TableImporter()
            rows = [row for line in text.splitlines(keepends=True) for row in reader.feed(line)]
            rows = reader.settled(rows)
            if rows and any(map(_METRIC.search, rows[0])):
                yield Part(cell, rows, is_table=True, notes=reader.notes.texts())
                return
        yield from self._table_parts(cell, text_tables(text))
        console = ConsoleImporter()
        rows = [row for line in _lines(pieces) for row in console.feed(line)]
        rows = console.settled(rows + console.finish())
        notes = [note for note in console.notes.texts() if "say no step" not in note and "says no step" not in note]
        begun = [0, *restarts(rows), len(rows)]
        runs = [rows[begin:end] for begin, end in itertools.pairwise(begun)]
        runs = [run for run in runs if not all("train_runtime" in row for row in run)]  # more than the summary of an end
        if len(runs) > 1 and _are_epochs(runs):
            notes.append(f"the steps in cell {cell} begin anew in each of {len(runs)} epochs: they are counted on")
            runs = [_counted_on(runs)]
        bars = [bar for line in _lines(pieces) if (bar := bar_in(line)) and bar.may_be_training] if len(runs) == 1 else []
        for run in runs:
            bar = next((bar for bar in reversed(bars) if bar.done >= len(run)), None)
            yield Part(cell, run, config=dict(console.config), bar=bar, notes=notes)


def _are_epochs(runs: list[list[Fields]]) -> bool:
    """Whether a text whose steps go back is one training, counted anew in each epoch, rather than several trainings: the
    same names, and numbers that now and then go on from where they were rather than from the beginning.
    """
    names = set(runs[0][0]) - AXES
    if any(set(run[0]) - AXES != names or "train_runtime" in run[-1] for run in runs):
        return False
    main = min(names, key=lambda name: (not name.lower().endswith("loss"), not _TELLING.search(name), name), default="")
    goes_on = 0
    for before, run in itertools.pairwise(runs):
        first, last, now = before[0].get(main, 0), before[-1].get(main, 0), run[0].get(main, 0)
        goes_on += abs(now - last) <= abs(now - first)
    return len(runs) > MOST_IN_A_CELL or goes_on * 4 >= len(runs) - 1  # trainings that begin anew almost never go on


def _counted_on(runs: list[list[Fields]]) -> list[Fields]:
    rows: list[Fields] = []
    for run in runs:
        offset = rows[-1]["step"] + 1 - run[0]["step"] if rows else 0
        rows += [{**row, "step": row["step"] + offset} for row in run]
    return rows


def _lines(pieces: list[Piece]) -> Iterator[str]:
    """Lines in the order they were ended; a line of standard output may go on after what standard error says."""
    begun = {"stdout": "", "stderr": ""}
    for piece in pieces:
        kind = "stderr" if piece.kind == "stderr" else "stdout"
        *whole, begun[kind] = (begun[kind] + piece.text).split("\n")
        for line in whole:
            yield _with_bar(line) + "\n"
        if kind == "stderr" and begun[kind]:  # a progress bar: it is drawn anew, and never ended
            yield _with_bar(begun[kind]) + "\n"
            begun[kind] = ""
    if begun["stdout"]:
        yield begun["stdout"]


def _with_bar(line: str) -> str:
    return _BAR.sub(r"\1|| ", line) if "% " in line else line


def _read_table(cell: int, table: Table) -> Part | None:
    """The training that a table shows; None where it shows something else."""
    is_evaluated = {"Training Loss", "Validation Loss"} <= set(table.names)
    names = [logged_name(name, is_evaluated=is_evaluated) for name in table.names]
    is_stepped = any(name in STEP_NAMES or name == "epoch" for name in names)
    if not any(map(_METRIC.search, names)) or not (is_stepped or len(_TRAINERS & set(names)) >= 3):
        return None
    notes = Notes()
    steps = StepFinder(notes)
    rows: list[Fields] = []
    has_nan = has_gaps = False
    for cells in table.rows:
        if len(cells) != len(names):
            notes.count("1 row of a table is damaged and was skipped", "{} rows of a table are damaged and were skipped")
            continue
        row: Fields = {}
        for name, cell_text in zip(names, cells, strict=True):
            number = number_in(cell_text.replace(",", "")) if name and name not in ELLIPSES else None
            if name.lower() in ROW_NUMBERS or cell_text.lower() in NOTHING or number is None:
                has_gaps = has_gaps or not cell_text
            else:
                row[name] = number
                has_nan = has_nan or math.isnan(number)
        placed = steps.place(row)
        if len(placed) > 1:
            rows.append(placed)
    if not rows:
        return None
    if has_nan and not has_gaps and table.total is None:  # a frame of pandas pads with nan, a trainer's table does not
        drop_padding(rows)
    rows = _count_epochs(rows, steps, table)
    if table.is_elided:
        of = f" of {table.length}" if table.length else ""
        notes.say(f"the table of cell {cell} shows only {len(rows)}{of} rows: an ellipsis stands for the others")
    is_over = table.total is not None and table.done == table.total
    total = table.total if table.epochs or not steps.is_numbered else None
    return Part(cell, rows, is_table=True, total=total, is_over=is_over, notes=notes.texts())


def _count_epochs(rows: list[Fields], steps: StepFinder, table: Table) -> list[Fields]:
    """Rows of epochs, at the steps at which those ended; at the epochs where the steps are not known."""
    rows = count_epochs(rows, steps)
    if not steps.is_numbered or not table.epochs or not table.total:
        return rows
    late = 1 if rows[0]["step"] == 0 else 0  # the first ended a little before 1 and was cut to 0
    share = table.total / table.epochs
    return [{**row, "step": min(table.total, round((row["step"] + late) * share))} for row in rows]


def logged_name(name: str, *, is_evaluated: bool = False) -> str:
    """What the trainer logged under the name that a notebook's table shows. `is_evaluated` says that the table is one of
    evaluations: its capitalised names are theirs.

    >>> logged_name("Training Loss"), logged_name("completions / mean_length"), logged_name("Step")
    ('loss', 'completions/mean_length', 'step')
    >>> logged_name("Rewards/chosen", is_evaluated=True), logged_name("Validation Loss")
    ('eval_rewards/chosen', 'eval_loss')
    """
    known = {"Training Loss": "loss", "Validation Loss": "eval_loss", "Step": "step", "Epoch": "epoch"}.get(name)
    if known:
        return known
    plain = name.replace(" / ", "/")
    if is_evaluated and plain[:1].isupper():
        return f"eval_{plain.lower().replace(' ', '_')}"
    return plain


def _is_train(row: Fields) -> bool:
    """Whether a row is one of training steps, not of an evaluation or a summary at the end."""
    return "train_runtime" not in row and not all(name.startswith("eval") for name in row if name not in AXES)


def _place(part: Part, tables: list[Part], ended: int | None, trainer: Trainer | None) -> None:
    """Give the rows of a text without steps those of the trainer's table, or what their epochs and the settings tell."""
    train = [row for row in part.rows if _is_train(row)]
    for table in tables:
        if _has_losses_of(train, table.rows):
            known = [row["step"] for row in table.rows]
            cadence = max(1, known[-1] - known[-2]) if len(known) > 1 else 1
            known += [known[-1] + cadence * more for more in range(1, len(train) - len(known) + 1)]
            _restep(part, known)
            return
    epochs = [row.get("epoch", math.nan) for row in train]
    summary = next((row for row in reversed(part.rows) if "train_runtime" in row), None)
    final = summary.get("epoch") if summary else None
    bar = part.bar
    total = ended or next((table.total for table in tables if table.is_over), None)
    if total is None and bar is not None and bar.done == bar.total:
        total = bar.total
    if total and final and all(map(math.isfinite, epochs)):
        told = [round(epoch * total / final) for epoch in epochs]
        if all(before < after for before, after in itertools.pairwise([0, *told])) and told[-1] <= total:
            _restep(part, told)
            return
    cadence = int(trainer.settings.get("logging_steps", 1)) if trainer else 1
    planned = part.config.get("max_steps") or total
    if cadence > 1 and (not planned or len(train) * cadence <= planned + cadence):
        _restep(part, [cadence * position for position in range(1, len(train) + 1)])
    elif cadence == 1 and bar is not None and (cadence := _cadence(len(train), bar.done)) > 1:
        _restep(part, [cadence * position for position in range(1, len(train) + 1)])
        part.total = part.total or bar.total
        part.notes = [*part.notes, f"rows say no step: {len(train)} until step {bar.done} are one every {cadence} steps"]


def _cadence(rows: int, done: int) -> int:
    """Every how many steps a row was logged, when there are so many at a step: the roundest of the numbers that fit.

    >>> _cadence(50, 500), _cadence(3, 31), _cadence(20, 20)
    (10, 10, 1)
    """
    fitting = range(done // (rows + 1) + 1, done // rows + 1)
    return max(fitting, key=lambda number: sum(number % base == 0 for base in (2, 5, 10, 50, 100, 500)), default=1)


def _has_losses_of(rows: list[Fields], shown: list[Fields]) -> bool:
    """Whether rows of a text are those of a table: as many, with the same losses as far as both show digits."""
    pairs = list(zip(rows, shown, strict=False))
    if not pairs or abs(len(rows) - len(shown)) > max(2, len(shown) // 5):
        return False
    compared = [(row["loss"], other["loss"]) for row, other in pairs if "loss" in row and "loss" in other]
    return len(compared) * 10 >= len(pairs) * 9 and sum(map(_is_close, *zip(*compared))) * 10 >= len(compared) * 9


def _restep(part: Part, steps: list[int]) -> None:
    """Number the training rows anew; those between them keep the step of the row before."""
    renumbered = dict(zip(range(1, len(steps) + 1), steps, strict=True))
    part.rows = [{**row, "step": renumbered.get(row["step"], steps[-1])} for row in part.rows]


def _is_close(one: float, other: float) -> bool:
    """Whether two numbers may be the same, one of them printed with four digits behind the point."""
    return (math.isnan(one) and math.isnan(other)) or abs(one - other) <= 6e-5 + 1e-4 * abs(other)


def _shows_the_same(training: Training, part: Part) -> bool:
    """Whether a part shows steps of a training once more: another view of it, or the same table a little later."""
    shown = {row["step"]: row for row in training.rows}
    common = [(shown[row["step"]], row) for row in part.rows if row["step"] in shown]
    if len(common) * 2 < min(len(shown), len(part.rows)):
        return False
    pairs = [
        (one[name], other[name])
        for one, other in common
        for name in one.keys() & other.keys() - AXES
        if isinstance(one[name], int | float) and isinstance(other[name], int | float)
    ]
    if not pairs:  # another frame of the same steps, of other names
        return training.cells[-1] == part.cell and not any(one.is_table and part.is_table for one in training.parts)
    if sum(itertools.starmap(_is_close, pairs)) * 10 < len(pairs) * 9:
        return False
    is_flat = max(one for one, _ in pairs) - min(one for one, _ in pairs) < 1e-3
    if is_flat and part.is_table:  # losses that are 0 throughout are those of any training
        return training.cells[-1] == part.cell and not any(one.is_over for one in training.parts)
    return True


def _goes_on(training: Training, part: Part) -> bool:
    """Whether a part continues a training that was resumed: the same names, and steps right after its last."""
    steps = sorted({row["step"] for one in training.parts for row in one.rows})
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    first = min(row["step"] for row in part.rows)
    if not gaps or part.is_counted or not steps[-1] < first <= steps[-1] + 3 * max(gaps):
        return False
    names = {name for row in part.rows for name in row} - AXES
    return len(names & training.names) * 2 > len(names | training.names)
