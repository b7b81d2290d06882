"""`MetricsTracker`: one row per epoch, stored as a record, a table, a history and three plots, and printed as a block.

    tracker = rlvitals.MetricsTracker(output_dir="out/metrics")
    tracker.set_total_epochs(10)
    tracker.log_epoch(epoch=1, loss=2.35, reward=0.78, kl_divergence=0.012, entropy=2.57, epoch_time=332.5)
    tracker.log_epoch(epoch=1, bertscore=0.52, bleu=0.27)          # scores may come later: the same row

`store.epochs` writes the record and the files. Nothing here raises into a training loop.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rlvitals.capture import console, endings
from rlvitals.capture.identity import launched
from rlvitals.capture.intake import Intake
from rlvitals.capture.run import Run
from rlvitals.codec import NONFINITE, encode, read_nonfinite
from rlvitals.errors import ConfigError, MissingDependency
from rlvitals.guard import Once, guarded, words_of
from rlvitals.records import Finding
from rlvitals.store.epochs import SCORES, TRAINING, Cell, EpochRow, EpochStore, Word
from rlvitals.store.layout import RunDir, kept_folder
from rlvitals.store.process import renew_after_fork
from rlvitals.terminal import escaped_json, logger
from rlvitals.values import is_whole

if TYPE_CHECKING:
    from rlvitals.health.rulebook import Rulebook
    from rlvitals.render.epoch_plots import Epochs

STOP_RULE = "early_stop_reward"
STOP_RULES = (STOP_RULE, "early_stop_loss")

MOST_EPOCHS = 1000
"""Largest number of epochs that the monitor replays. This takes a tenth of a second."""


class MetricsTracker:
    """Keeps one row for each epoch of a training. If the folder already has epochs, the tracker continues them.

    If the folder is the `metrics/` of a run that this process records, the tracker's findings are added to the run's,
    and each epoch stores the run's step. Several processes, such as a trainer and an evaluator, may log to one folder:
    nothing is locked, and the last value for an epoch wins. Only rank 0 writes.

    Example:
        ```python
        import rlvitals

        tracker = rlvitals.MetricsTracker("out/metrics", total_epochs=3, plots=False, display="none")
        for epoch in range(1, 4):
            tracker.log_epoch(epoch, loss=1 / epoch, reward=0.2 * epoch)
        print(len(tracker.history), tracker.should_stop)  # 3 False
        ```
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str] = "./modern_outputs/metrics",
        save_every_n_epochs: int = 1,
        *,
        total_epochs: int | None = None,
        keep_last_epochs: int | None = None,
        early_stopping: bool | int = True,
        plots: bool = True,
        display: str = "auto",
        fsync: bool = False,
        rank: int | None = None,
    ) -> None:
        """Open the folder.

        Args:
            output_dir: The folder of the record, the table, the history and the plots.
            save_every_n_epochs: How often the table, the history and the plots are written. They are also written at
                the last epoch. The record is written at every call.
            total_epochs: The planned number of epochs.
            keep_last_epochs: Number of epochs in the table and the history; None keeps all.
            early_stopping: The patience in epochs. True means 5; False disables early stopping.
            plots: Whether plots are drawn.
            display: `auto` prints a block per epoch on stderr, `json` one line, `none` nothing.
            fsync: Whether files are synced to disk.
            rank: The rank of this process; None reads it from the environment.
        """
        self._folder = kept_folder(output_dir)
        _check(self._folder, display, save_every_n_epochs=save_every_n_epochs, keep_last_epochs=keep_last_epochs)
        self.save_every_n_epochs = save_every_n_epochs
        self._keep_last = keep_last_epochs
        self._display = display
        self._is_writing = (launched().rank if rank is None else rank) == 0
        self._fsync = fsync
        self._total: int | None = None
        if total_epochs is not None:
            self.set_total_epochs(total_epochs)
        self._lock = threading.RLock()
        renew_after_fork(self, "_lock")
        self._pid = os.getpid()
        self._warn_once = Once()
        self._intake = Intake(logger.warning)
        self._store = EpochStore(self._folder, fsync=fsync)
        self._watch = EpochWatch(early_stopping)
        self._plotter = Plotter(self._store.save_plot) if plots and self._is_writing else None
        self._unsaved: set[int] = set()
        self._is_disk_sick = False
        self._run: Run | None = None
        self._live_run()
        self._reload()

    @property
    def history(self) -> list[dict[str, Any]]:
        """The epochs in order, each with `epoch`, `timestamp` and its logged metrics."""
        with self._lock:
            return [_row(epoch) for epoch in self._store.history]

    @property
    def findings(self) -> list[Finding]:
        """The findings of early stopping; their steps are epochs."""
        return list(self._watch.findings)

    @property
    def should_stop(self) -> bool:
        """Whether the reward has not risen for as many epochs as `early_stopping` allows."""
        return self._watch.should_stop

    def log_epoch(  # noqa: PLR0917 - the same order as in the guide's tracker
        self,
        epoch: int,
        loss: Any = None,
        reward: Any = None,
        kl_divergence: Any = None,
        entropy: Any = None,
        learning_rate: Any = None,
        **further: Any,
    ) -> None:
        """Log metrics of an epoch, in one call or in several. Scores (`bertscore`, `codebleu`, `bleu`, `rouge`, `ruby`)
        and other metrics may come later, under their own names. Values are numbers, numpy or torch scalars; None is
        ignored.

        When the call returns, the record is written, and also the table and the history if they are due.
        """
        given = {
            "loss": loss,
            "reward": reward,
            "kl_divergence": kl_divergence,
            "entropy": entropy,
            "learning_rate": learning_rate,
            **further,
        }
        if os.getpid() != self._pid:
            self._warn_once("an epoch logged in a forked process is dropped: only its parent process writes")
            return
        with guarded(self._not_logged), self._lock:
            number = self._intake.whole("epoch", epoch, "its metrics are dropped")
            if number is not None:
                self._take(number, self._metrics(given))

    def set_total_epochs(self, total: int) -> None:
        """Set the planned number of epochs, from which the remaining time is estimated."""
        if not is_whole(total) or total < 1:
            raise ConfigError(f"the number of epochs must be a whole number of at least 1, not {total!r}")
        self._total = total

    def get_remaining_epochs(self) -> int | None:
        """The number of remaining epochs; None if the total is unknown."""
        if self._total is None:
            return None
        numbers = self._store.epochs
        # Epochs may be counted from 0 or from 1, and the first ones may be missing.
        reached = max(numbers, default=0) + (1 if 0 in numbers else 0)
        return max(self._total - max(len(numbers), reached), 0)

    def get_best_metrics(self) -> dict[str, float | int | None]:
        """`best_reward`, `best_reward_epoch`, `lowest_loss`, `lowest_loss_epoch`, `best_bertscore`, …: see
        `best_metrics`.
        """
        with self._lock:
            return best_metrics(self._store.history, self._store.columns)

    def export_summary(self) -> dict[str, Any]:
        """A summary of the training: number of epochs, times, means over epochs, best and last metrics, and the paths
        of the files.
        """
        with self._lock:
            history, paths = self._store.history, self._store.paths
            means = averages(history, self._store.columns[2:])
            timed = averages(history, ["epoch_time"])
            return {
                "total_epochs": len(history),
                "total_training_time": float(sum(_times(history))),
                "average_epoch_time": timed.get("epoch_time"),
                "average_metrics": means,
                "best_metrics": self.get_best_metrics(),
                "final_metrics": _row(history[-1]) if history else {},
                "metrics_file": str(paths.table),
                "history_file": str(paths.history),
                "record_file": str(paths.record),
                "plots_dir": str(paths.plots),
            }

    def flush(self) -> None:
        """Write everything that is not written yet, and wait for the plots."""
        if not self._is_writing or os.getpid() != self._pid:
            return
        with self._lock:
            if self._unsaved:
                self._live_run()
                self._save()
        if self._plotter is not None:
            self._plotter.wait()

    def close(self) -> None:
        """Flush and close the tracker. This also happens when the interpreter ends."""
        self.flush()
        _open_trackers.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reload(self) -> None:
        try:
            self._store.load()
        except OSError as error:
            self._warn_once(f"{self._folder} cannot be read: {error.strerror or error}; its epochs are unknown")
        if self._store.epochs:
            self._watch.look(self._store.history)
            if self._is_writing and self._store.is_stale:  # a training was killed before they were due
                with suppress(OSError):
                    self._store.save(self._keep_last)

    def _take(self, epoch: int, metrics: dict[str, Cell]) -> None:
        was_saved = epoch in self._store.epochs and epoch not in self._unsaved
        run = self._live_run()
        step = run.last_step if run is not None and run.last_step >= 0 else None
        word = Word(epoch, round(time.time(), 3), self._store.attempt, metrics, step)
        if not self._is_writing:
            self._store.remember(word)
            self._watch.look(self._store.history)
            return
        _open_trackers.add(self)
        self._store.fsync = self._fsync or (run is not None and run.settings.fsync == "always")
        try:
            self._store.append(word)
        except OSError as error:
            self._report(error)
        self._unsaved.add(epoch)
        is_last = self._total is not None and self.get_remaining_epochs() == 0
        every = self.save_every_n_epochs
        if was_saved or is_last or epoch % every == 0 or len(self._unsaved) >= every:
            self._save()
        self._print(self._store.epochs[epoch])
        self._report_findings(self._watch.look(self._store.history), run)

    def _save(self) -> None:
        try:
            self._store.save(self._keep_last)
            self._unsaved.clear()
            if self._is_disk_sick:
                self._is_disk_sick = False
                logger.warning("%s can be written again; nothing is missing", self._folder)
        except OSError as error:
            self._report(error)
        if self._plotter is not None:
            self._plotter.draw([(epoch.number, epoch.numbers) for epoch in self._store.history])

    def _report(self, error: OSError) -> None:
        if not self._is_disk_sick:
            self._is_disk_sick = True
            logger.warning(
                "cannot write %s: %s. The epochs are kept in memory, and writing is tried again with the next epoch",
                error.filename or self._folder,
                error.strerror or error,
            )

    def _not_logged(self, error: Exception) -> None:
        self._warn_once(f"an epoch could not be logged: {words_of(error)}", str(type(error)))

    def _print(self, epoch: EpochRow) -> None:
        if self._display == "none":
            return
        if self._display == "json":
            strict = {name: value if value - value == 0 else str(value) for name, value in epoch.numbers.items()}
            console.print_apart(escaped_json(encode({"epoch": epoch.number, **strict}).decode().rstrip()))
            return
        from rlvitals.render.epoch_block import epoch_block, time_left

        left = time_left(_times(self._store.history), self.get_remaining_epochs())
        console.print_apart(f"\n{epoch_block(epoch.number, epoch.metrics, left)}")

    def _report_findings(self, found: list[Finding], run: Run | None) -> None:
        is_shown = self._display not in console.SILENT
        if run is not None:
            run.take_findings([self._in_steps(finding, run) for finding in found], self._watch.standing)
            is_shown = is_shown and not (run.settings.monitor and run.settings.display not in console.SILENT)
        for finding in found:
            logger.info("%s at epoch %d: %s", finding.severity, finding.step, finding.title)
            if is_shown and finding.severity != "info":
                from rlvitals.health.notify import banner

                console.print_apart(banner(finding, getattr(sys.stderr, "encoding", None)))

    def _in_steps(self, finding: Finding, run: Run) -> Finding:
        """The finding in steps of the run instead of epochs; the epoch is added to the evidence."""
        steps = {number: epoch.step for number, epoch in self._store.epochs.items() if epoch.step is not None}
        step = steps.get(finding.step, run.last_step)
        evidence = {**finding.evidence, "epoch": float(finding.step)}
        return replace(finding, step=step, onset_step=steps.get(finding.onset_step, step), evidence=evidence)

    def _live_run(self) -> Run | None:
        """The run that this process records, if the folder is its `metrics/`. Follows a renamed run directory."""
        for run in endings.open_runs():
            if not isinstance(run, Run):
                continue
            if self._run is run:
                self._store.paths = run.place().epochs
                self._folder = self._store.paths.folder
            elif RunDir(Path(run.dir)).epochs.folder.resolve() != self._folder:
                continue
            self._run = run
            return run
        return None

    def _metrics(self, given: dict[str, Any]) -> dict[str, Cell]:
        taken = self._intake.take(given)
        metrics = {
            name: int(value) if isinstance(value, bool) else value
            for name, value in taken.items()
            if not name.startswith("_")
        }
        return metrics | read_nonfinite(taken.get(NONFINITE, ""))


_open_trackers: set[MetricsTracker] = set()
"""The trackers that have logged an epoch and are not closed."""


@atexit.register
def _close_all() -> None:
    for tracker in list(_open_trackers):
        with guarded():
            tracker.close()


def _check(folder: Path, display: str, **counts: int | None) -> None:
    """Raise ConfigError for invalid arguments."""
    console.check(display)
    for name, count in counts.items():
        if count is not None and (not is_whole(count) or count < 1):
            raise ConfigError(f"{name} must be a whole number of at least 1, not {count!r}")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"output_dir={str(folder)!r} is a file; name a folder")


def _row(epoch: EpochRow) -> dict[str, Any]:
    return {"epoch": epoch.number, "timestamp": epoch.timestamp, **epoch.metrics}


def _times(history: list[EpochRow]) -> list[float]:
    """The epoch times that were measured."""
    times = [epoch.numbers.get("epoch_time") for epoch in history]
    return [seconds for seconds in times if seconds is not None and seconds - seconds == 0]


def best_metrics(history: Sequence[EpochRow], columns: Iterable[str]) -> dict[str, float | int | None]:
    """A flat mapping: `best_NAME` and `best_NAME_epoch` if higher is better, `lowest_NAME` and `lowest_NAME_epoch` if
    lower is better. Reward and loss are always included, as None before they were logged. Other metrics are included
    if the catalogue has their direction. Only finite numbers count.
    """
    found: dict[str, float | int | None] = {}
    for name in columns:
        word = _word(name)
        if not word:
            continue
        points = [(epoch.number, number) for epoch in history if (number := _finite(epoch, name)) is not None]
        if points:
            pick = max if word == "best" else min
            best = pick(value for _, value in points)
            found[f"{word}_{name}"] = best
            found[f"{word}_{name}_epoch"] = next(number for number, value in points if value == best)
        elif name in ("reward", "loss"):
            found |= {f"{word}_{name}": None, f"{word}_{name}_epoch": None}
    return found


def averages(history: Sequence[EpochRow], columns: Iterable[str]) -> dict[str, float]:
    """The mean of each metric over the epochs that have it, with equal weight."""
    found = {}
    for name in columns:
        values = [value for epoch in history if (value := _finite(epoch, name)) is not None]
        if values:
            found[name] = math.fsum(values) / len(values)
    return found


def _word(name: str) -> str:
    if name == "loss":
        return "lowest"
    if name == "reward" or name in SCORES:
        return "best"
    if name in TRAINING or name in ("epoch", "timestamp"):
        return ""  # for example speed, which is no quality of the model
    from rlvitals import catalog

    found = catalog.reader().meaning(name)
    return {"up": "best", "down": "lowest"}.get(found.metric.direction if found else "", "")


def _finite(epoch: EpochRow, name: str) -> float | int | None:
    value = epoch.numbers.get(name)
    return value if value is not None and math.isfinite(value) else None


class EpochWatch:
    """Early stopping: runs the guide's rules, and the check for non-finite numbers, on the epochs. The steps of its
    `findings` are epochs.

    Each `look` replays all epochs, so corrected values, late values and resumed trainings are judged alike. A finding
    is reported once.
    """

    def __init__(self, patience: bool | int = True) -> None:
        """`patience` is the number of epochs without a better reward or a lower loss. True uses the rules' own number;
        False disables the rules.
        """
        if patience is not True and patience is not False and patience < 1:
            raise ConfigError(f"early_stopping={patience!r} must be True, False or a number of epochs, as in 5")
        self._patience = patience
        self._book: Rulebook | None = None
        self._known: set[tuple[str, str, int]] = set()
        self.findings: list[Finding] = []
        self.standing: set[str] = set()
        """The rules in alarm now."""
        self.should_stop = False

    def look(self, history: Sequence[EpochRow]) -> list[Finding]:
        """Judge the current epochs; returns the findings that were not reported before."""
        if self._patience is False:
            return []
        from rlvitals.health.monitor import Monitor

        book = self._book = self._book or self._rules()
        monitor = Monitor(algorithm="ppo", framework="rlhf_tracker", rules=book)
        for epoch in history[-MOST_EPOCHS:]:
            monitor.update({**epoch.numbers, "step": epoch.number, "epoch": epoch.number})
        self.findings = list(monitor.findings)
        self.standing = set(monitor.case.raised)
        needed = book.rules[STOP_RULE].hold[0]
        is_raised = any(finding.rule == STOP_RULE for finding in self.findings)
        self.should_stop = is_raised and epochs_since_best(history) >= needed
        if not self.should_stop:
            self.standing.discard(STOP_RULE)
        new = [finding for finding in self.findings if _key(finding) not in self._known]
        self._known.update(map(_key, new))
        return new

    def _rules(self) -> Rulebook:
        from rlvitals.health import rulebook

        book = [{"rule": "*", "enabled": False}, {"rule": "nonfinite_core", "enabled": True}]
        if self._patience is True:
            return rulebook.load(book, "early_stopping")
        hold = f"{self._patience} of {self._patience}"
        return rulebook.load(book, "early_stopping", [{"rule": rule, "hold": hold} for rule in STOP_RULES])


def epochs_since_best(history: Sequence[EpochRow]) -> int:
    """The number of epochs with a reward after the best one; 0 without rewards."""
    rewards = [epoch.numbers["reward"] for epoch in history if math.isfinite(epoch.numbers.get("reward", math.nan))]
    return len(rewards) - 1 - rewards.index(max(rewards)) if rewards else 0


def _key(finding: Finding) -> tuple[str, str, int]:
    return finding.alarm, finding.severity, finding.step


class Plotter:
    """Draws plots of epochs in a separate thread and passes them to `save(name, picture)`. Never raises.

    Only the newest state is drawn, one plot at a time. If the trainer logs faster than plots are drawn, some states are
    skipped; `wait` returns when the last one is drawn. Without matplotlib, nothing is drawn and one warning is logged.
    """

    def __init__(self, save: Callable[[str, bytes], None]) -> None:
        self._save = save
        self._lock = threading.Lock()
        self._drawing = threading.Lock()
        renew_after_fork(self, "_lock", "_drawing")
        self._next: Epochs | None = None
        self._thread: threading.Thread | None = None
        self._warn_once = Once()
        self.is_off = False
        """True after matplotlib was found to be missing."""

    def draw(self, epochs: Epochs) -> None:
        """Request plots of these epochs. Returns at once."""
        if self.is_off or not epochs:
            return
        with self._lock:
            self._next = epochs
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="rlvitals-plots", daemon=True)
                with suppress(RuntimeError):  # the interpreter is ending: `wait` draws the plots
                    self._thread.start()

    def wait(self) -> None:
        """Return when all requested plots are drawn."""
        self._work()

    def _work(self) -> None:
        while True:
            with self._drawing:  # one at a time: after waiting here, the thread's plots are done
                with self._lock:
                    epochs, self._next = self._next, None
                    if epochs is None:
                        self._thread = None
                        return
                self._draw(epochs)

    def _draw(self, epochs: Epochs) -> None:
        with guarded(self._not_drawn):
            from rlvitals.render.epoch_plots import pictures

            for name, picture in pictures(epochs).items():
                self._save(name, picture)

    def _not_drawn(self, error: Exception) -> None:
        if isinstance(error, MissingDependency):
            self.is_off = True
            self._warn_once(f"no plots: {error}")
        elif isinstance(error, OSError):
            self._warn_once(f"the plots cannot be written: {error.strerror or error}; trying again later", "disk")
        else:
            self._warn_once(f"the plots cannot be drawn: {words_of(error)}", str(type(error)))
