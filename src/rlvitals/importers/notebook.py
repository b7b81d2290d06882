"""Jupyter notebooks: trainings in the saved outputs of their cells. Nothing is run.

An output shows a part of a training: the table a trainer keeps up to date, a frame of pandas, rows printed as text.
Parts that show the same steps, or continue where another ended, are one training. A notebook may hold several; the one
most likely meant is read, and the notes name the others.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.errors import NotALog
from rlvitals.importers.base import Importer, Notes, named, text_in, text_of
from rlvitals.importers.cells import number_in
from rlvitals.importers.console import ConsoleImporter, bar_in
from rlvitals.importers.jsonl import parse_lenient
from rlvitals.importers.notebook_code import CodedTrainer, CodeReader
from rlvitals.importers.notebook_tables import ELLIPSES, NotebookTable, html_tables, text_tables
from rlvitals.importers.notebook_trainings import (
    FEWEST_ROWS,
    LOOK_BACK,
    METRIC,
    BarProgress,
    OutputPart,
    Training,
    is_train,
    joined_epochs,
    place,
)
from rlvitals.importers.padding import drop_padding
from rlvitals.importers.steps import STEP_NAMES, StepFinder, count_epochs, has_values, restarts
from rlvitals.importers.table import NOTHING, ROW_NUMBERS, TableImporter, is_table
from rlvitals.records import Fields

FEWEST_PRINTED = 3
"""If a trainer printed fewer rows, they are a result rather than a training."""

MOST_NAMED = 8
"""The most other trainings that the notes name."""

_BEGINS = re.compile(r'\{\s*"(?:cells|metadata|nbformat|nbformat_minor|worksheets)"\s*:')
_POINTER = "version https://git-lfs"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_OBJECT = re.compile(r"<[\w.]+ .*>$|<[\w.]+>$|Figure\(")
_ENDED = re.compile(r"TrainOutput\(global_step=(\d+)")
_BAR = re.compile(r"(\d{1,3}%) (?=\d+/\d+ \[)")
"""A program's progress bar as Colab shows it, without the bar itself."""
_TRUNCATED = "Buffered data was truncated after reaching the output size limit"
_TABLE_NAMES = {"Training Loss": "loss", "Validation Loss": "eval_loss", "Step": "step", "Epoch": "epoch"}
_TRAINERS = frozenset(
    {"loss", "grad_norm", "learning_rate", "reward", "reward_std", "kl", "rewards/margins", "train_loss"}
)
"""A table without steps shows a training if it has three of these names."""
_MAY_BE_ZERO = ("beta", "temperature")
_ELSEWHERE = "pass the log of the training (trainer_state.json in the trainer's output folder)"


class NotebookImporter(Importer):
    """A notebook with its saved outputs."""

    name = "notebook"
    description = "Jupyter notebooks (.ipynb) with their saved outputs"
    takes_choice = True

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        text = text_in(head)
        if path.suffix == ".ipynb":
            return bool(text)
        return bool(_BEGINS.match(text)) and ('"cell_type"' in text or '"nbformat"' in text)

    def rows(self, path: Path) -> list[Fields]:
        book = Book(_cells(path))
        if not book.trainings:
            raise NotALog(path, book.why_empty())
        chosen = self._choose(path, book.trainings)
        self._keep_facts(chosen, book)
        return chosen.rows

    def _choose(self, path: Path, trainings: list[Training]) -> Training:
        if self.choice and self.choice not in map(str, range(1, len(trainings) + 1)):
            held = "; ".join(f"{number}: {one.describe()}" for number, one in enumerate(trainings[:MOST_NAMED], 1))
            raise NotALog(path, f"the notebook has no training {self.choice}. It holds {len(trainings)}: {held}")
        newest_first = reversed(range(len(trainings)))
        likeliest = 1 + max(newest_first, key=lambda place: trainings[place].likelihood)
        number = int(self.choice) if self.choice else likeliest
        chosen = trainings[number - 1]
        if len(trainings) > 1:
            others = [f"{other}: {one.describe()}" for other, one in enumerate(trainings, 1) if other != number]
            more = f"; and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
            self.notes.say(
                f"the notebook holds {len(trainings)} trainings. Number {number} was read ({chosen.describe()}). "
                f"The others are {'; '.join(others[:MOST_NAMED])}{more}. To read another, add its number to the path: "
                f"{path.name}#{1 if number != 1 else 2}"
            )
        return chosen

    def _keep_facts(self, chosen: Training, book: Book) -> None:
        """Store the settings from code, banners and progress bars. Note errors and cut outputs in the training's
        cells.
        """
        if chosen.trainer is not None:
            self.algorithm = chosen.algorithm
            self.framework = "trl" if chosen.algorithm else None
            given = chosen.trainer.settings
            self.config.update({name: value for name, value in given.items() if value > 0 or name in _MAY_BE_ZERO})
        for part in chosen.parts:
            self.config.update(part.config)
            for note in part.notes:
                self.notes.say(note)
        if totals := [part.total for part in chosen.parts if part.total]:
            self.config["max_steps"] = max(totals)
        if chosen.algorithm and not chosen.is_supervised and not chosen.is_telling:
            self.notes.say(
                f"the notebook shows only the loss of this {chosen.algorithm.upper()} training. Rewards, KL and the "
                "like are in trainer_state.json, in the trainer's output folder"
            )
        for cell in chosen.cells:
            if cell in book.errors:
                self.notes.say(f"cell {cell} ended with an error: {book.errors[cell]}")
            if cell in book.cut:
                self.notes.say(f"the output of cell {cell} was cut by the notebook service: rows are missing")


# The file


def _cells(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook, in any version of the format."""
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
        raise NotALog(path, "it is not a notebook with cells")
    return found


class CellOutput(NamedTuple):
    """One output of a cell, or a part of it."""

    kind: str
    """"stdout" and "stderr" for text that continues in the next piece of its kind, "html", "result", "error"."""
    text: str


def _pieces(outputs: object) -> Iterator[CellOutput]:
    """A cell's outputs, each in its richest supported form. Images and widgets are skipped."""
    for output in outputs if isinstance(outputs, list) else ():
        if not isinstance(output, dict):
            continue
        kind = output.get("output_type")
        if kind == "stream":
            name = output.get("name") or output.get("stream")
            yield CellOutput("stderr" if name == "stderr" else "stdout", _text(output.get("text")))
        elif kind in ("error", "pyerr"):
            yield CellOutput("error", f"{output.get('ename')}: {output.get('evalue')}")
        else:
            data = output.get("data")
            if not isinstance(data, dict):  # before version 4 the forms were next to the type
                data = {"text/html": output.get("html"), "text/plain": output.get("text")}
            html, plain = _text(data.get("text/html")), _text(data.get("text/plain"))
            if _WIDGET in data:
                continue
            if "<table" in html.lower():
                yield CellOutput("html", html)
            elif plain and not _OBJECT.match(plain[:200]):
                yield CellOutput("result" if kind in ("execute_result", "pyout") else "stdout", f"{plain}\n")


def _text(value: object) -> str:
    """A text in the notebook format: one string, or a list of lines."""
    if isinstance(value, str):
        return value
    return "".join(line for line in value if isinstance(line, str)) if isinstance(value, list) else ""


# From outputs to trainings


class Book:
    """The trainings that the cells of a notebook show."""

    def __init__(self, cells: Sequence[dict[str, Any]]) -> None:
        self.trainings: list[Training] = []
        self.errors: dict[int, str] = {}
        """By cell, the error it ended with."""
        self.cut: set[int] = set()
        """Cells whose output the notebook service truncated."""
        self._cells = cells
        self._outputs = 0
        self._settings: dict[str, Any] = {}
        """Settings from the current cell's texts, such as a banner before the table."""
        self._unlogged: NotebookTable | None = None
        """A trainer's table that ends before its first row."""
        self._other_columns: dict[str, None] = {}
        """The columns of tables that show no training."""
        code, results = CodeReader(), list[Training]()
        for number, cell in enumerate(cells, 1):
            if cell.get("cell_type") == "code":
                started = code.read(_text(cell.get("source", cell.get("input"))))
                pieces = list(_pieces(cell.get("outputs")))
                self._outputs += len(pieces)
                self._take(self._parts(number, pieces, started[-1] if started else code.latest), started, code, results)
        self.trainings = self.trainings or results

    def why_empty(self) -> str:
        """Why the notebook shows no training, and what to do."""
        seen = f"{_counted(len(self._cells), 'cell')}, {_counted(self._outputs, 'output')}"
        if not self._outputs:
            return f"the notebook was saved without outputs ({seen}): run it and save it, or {_ELSEWHERE}"
        if self._unlogged is not None:
            at = f"step {self._unlogged.done} of {self._unlogged.total}"
            return (
                f"the trainer's table in it has no rows: it was saved at {at}, before the first were logged ({seen}). "
                f"Lower logging_steps, or {_ELSEWHERE}"
            )
        if self._other_columns:
            seen += f", tables with the columns {'; '.join(list(self._other_columns)[:3])}"
        return f"no saved output of the notebook shows a training's numbers by step ({seen}): {_ELSEWHERE}"

    def _take(
        self, parts: list[OutputPart], started: list[CodedTrainer], code: CodeReader, results: list[Training]
    ) -> None:
        """Add the parts of a cell to the trainings they belong to, or begin new ones. `started` are the trainers that
        the cell starts. If it starts none, a trainer's output belongs to the trainer created last. Parts that are too
        short for a training are added to `results`.
        """
        next_trainer = 0
        for part in parts:
            if any(training.takes(part) for training in self.trainings[: -LOOK_BACK - 1 : -1]):
                continue
            trainer = (
                started[min(next_trainer, len(started) - 1)] if started else code.latest if part.is_trainers else None
            )
            rows = sum(map(is_train, part.rows))
            is_training = part.is_table or rows >= (FEWEST_PRINTED if part.is_trainers else FEWEST_ROWS)
            next_trainer += is_training
            (self.trainings if is_training else results).append(Training([part], trainer))

    def _parts(self, cell: int, pieces: list[CellOutput], trainer: CodedTrainer | None) -> list[OutputPart]:
        self._settings = {}
        tables: list[OutputPart] = []
        texts: list[OutputPart] = []
        ended: int | None = None
        for piece in pieces:
            if piece.kind == "error":
                self.errors[cell] = " ".join(piece.text.split())[:200]
            elif piece.kind == "html":
                tables += self._table_parts(cell, html_tables(piece.text))
            else:
                self.cut |= {cell} if _TRUNCATED in piece.text else set()
                if found := _ENDED.findall(piece.text):
                    ended = int(found[-1])
                if piece.kind == "result":
                    texts += self._text_parts(cell, [piece])
        texts += self._text_parts(cell, [piece for piece in pieces if piece.kind in ("stdout", "stderr")])
        for text in texts:
            if text.is_counted:
                place(text, tables, ended, trainer)
        for table in tables:
            table.config = dict(self._settings)
        return [*tables, *texts]

    def _table_parts(self, cell: int, tables: list[NotebookTable]) -> Iterator[OutputPart]:
        for table in tables:
            part = _read_table(cell, table)
            if part is not None:
                yield part
            elif table.total is not None and not table.rows:
                self._unlogged = table
            elif names := [name for name in table.names if name]:
                self._other_columns[named(names, most=6)] = None

    def _text_parts(self, cell: int, pieces: list[CellOutput]) -> Iterator[OutputPart]:
        text = "".join(piece.text for piece in pieces if piece.kind != "stderr")
        if is_table(text[:20_000]):
            reader = TableImporter()
            rows = reader.settled([row for line in text.splitlines(keepends=True) for row in reader.feed(line)])
            if _are_metrics(rows):
                yield OutputPart(cell, rows, is_table=True, notes=reader.notes.texts())
                return
        frames = text_tables(text)
        yield from self._table_parts(cell, frames)
        drawn = {f"{line}\n" for frame in frames for line in frame.lines}
        console = ConsoleImporter()
        rows = [row for line in _lines(pieces) if line not in drawn for row in console.feed(line)]
        rows = console.settled(rows + console.finish())
        self._settings.update(console.config)
        bounds = [0, *restarts(rows), len(rows)]
        runs = [rows[begin:end] for begin, end in itertools.pairwise(bounds)]
        runs = [run for run in runs if _are_metrics(run) and not all("train_runtime" in row for row in run)]
        notes = [note for note in console.notes.texts() if "no step" not in note]  # the steps are reported below
        if len(runs) > 1 and (joined := joined_epochs(runs)):
            notes.append(f"the steps in cell {cell} start over in each of {len(runs)} epochs: they are numbered on")
            runs = [joined]
        for run in runs:
            part = OutputPart(cell, run, config=dict(console.config), notes=list(notes))
            if len(runs) == 1 and part.is_counted:
                bars = [bar for line in _lines(pieces) if (bar := bar_in(line)) and bar.may_be_training]
                reached = [BarProgress(bar.done, bar.total) for bar in bars if bar.done >= len(run)]
                part.progress = reached[-1] if reached else None
            yield part


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _are_metrics(rows: list[Fields]) -> bool:
    return any(METRIC.search(name) for row in rows for name in row)


def _lines(pieces: list[CellOutput]) -> Iterator[str]:
    """Lines in the order they ended. A line on standard output may continue after text on standard error."""
    partial = {"stdout": "", "stderr": ""}
    for piece in pieces:
        kind = "stderr" if piece.kind == "stderr" else "stdout"
        *whole, partial[kind] = (partial[kind] + piece.text).split("\n")
        for line in whole:
            yield f"{_with_bar(line)}\n"
        if kind == "stderr" and partial[kind]:  # a progress bar, which is redrawn without ending its line
            yield f"{_with_bar(partial[kind])}\n"
            partial[kind] = ""
    if partial["stdout"]:
        yield _with_bar(partial["stdout"])


def _with_bar(line: str) -> str:
    return _BAR.sub(r"\1|| ", line) if "% " in line else line


def _read_table(cell: int, table: NotebookTable) -> OutputPart | None:
    """The training that a table shows; None if it shows something else."""
    is_evaluated = {"Training Loss", "Validation Loss"} <= set(table.names)
    names = [logged_name(name, is_evaluated=is_evaluated) for name in table.names]
    if not ({*STEP_NAMES, "epoch"} & set(names) or len(_TRAINERS & set(names)) >= 3):
        return None
    notes = Notes()
    steps = StepFinder(notes)
    rows: list[Fields] = []
    has_gaps = False
    for cells in table.rows:
        # In a trainer's table, rows logged before a column was added are shorter.
        texts = cells + [""] * (len(names) - len(cells)) if table.total is not None else cells
        if len(texts) != len(names):
            notes.count(
                "1 row of a table is damaged and was left out", "{} rows of a table are damaged and were left out"
            )
            continue
        row: Fields = {}
        for name, text in zip(names, texts, strict=True):
            has_gaps = has_gaps or not text
            is_column = name not in ELLIPSES and name.lower() not in ROW_NUMBERS and text.lower() not in NOTHING
            number = number_in(text.replace(",", "")) if is_column else None
            if number is not None:
                row[name] = number
        placed = steps.place(row)
        rows += [placed] if has_values(placed) else []
    if not _are_metrics(rows):
        return None  # a table of texts, or without rows
    if table.total is None and not has_gaps:  # a pandas frame pads with nan, a trainer's table does not
        drop_padding(rows)
    if table.is_elided:
        of = f" of {table.length}" if table.length else ""
        notes.say(f"the table of cell {cell} shows only {len(rows)}{of} rows: an ellipsis stands for the others")
    rows = _at_ends_of_epochs(count_epochs(rows, steps), table) if steps.is_numbered else rows
    return OutputPart(
        cell,
        rows,
        is_table=True,
        progress=None if table.done is None or table.total is None else BarProgress(table.done, table.total),
        total=table.total if table.epochs or not steps.is_numbered else None,
        notes=notes.texts(),
    )


def _at_ends_of_epochs(rows: list[Fields], table: NotebookTable) -> list[Fields]:
    """Moves rows of epochs to the steps at which the epochs ended, if the table states the number of epochs."""
    if not table.epochs or not table.total:
        return rows
    late = 1 if rows[0]["step"] == 0 else 0  # the table shows 0 if the first epoch ended slightly before 1
    share = table.total / table.epochs
    return [{**row, "step": min(table.total, round((row["step"] + late) * share))} for row in rows]


def logged_name(name: str, *, is_evaluated: bool = False) -> str:
    """The name under which the trainer logged a column of a notebook's table. In a table with evaluations
    (`is_evaluated`), capitalised names are evaluation metrics.

    >>> logged_name("Training Loss"), logged_name("completions / mean_length"), logged_name("Step")
    ('loss', 'completions/mean_length', 'step')
    >>> logged_name("Rewards/chosen", is_evaluated=True), logged_name("Validation Loss")
    ('eval_rewards/chosen', 'eval_loss')
    """
    if name in _TABLE_NAMES:
        return _TABLE_NAMES[name]
    plain = name.replace(" / ", "/")
    if is_evaluated and plain[:1].isupper():
        return f"eval_{plain.lower().replace(' ', '_')}"
    return plain
