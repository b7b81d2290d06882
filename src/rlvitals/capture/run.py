"""The recorder: `start` opens a run's directory, `Run.log` appends one row, `Run.finish` closes it.

Rows are durable: `log` returns after the operating system has accepted the row. Once a run has started, nothing here
raises into the training loop, except with `strict=True`. `intake` decides what a row may contain; `store` writes files.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rlvitals.capture import endings
from rlvitals.capture.console import ALARMS, Display
from rlvitals.capture.device_rows import LAST_WAIT_SECONDS, NO_ROW, PendingRow
from rlvitals.capture.forwarding import Forwarding, start_following
from rlvitals.capture.identity import Identity
from rlvitals.capture.intake import PLAIN, Intake, flat_numbers, without_sequences
from rlvitals.capture.live_card import LiveCard, in_notebook
from rlvitals.capture.live_monitor import LiveMonitor
from rlvitals.capture.measurements import Measurements
from rlvitals.capture.pulse import Pulse, beat_seconds
from rlvitals.config import Settings, with_secrets
from rlvitals.errors import BadValue
from rlvitals.guard import Once, guarded, words_of
from rlvitals.health.history import by_gravity
from rlvitals.records import MAX_STEP, Attempt, Finding, Request, RunInfo, Status
from rlvitals.store.evaluations import write_evaluation
from rlvitals.store.findings import append_event
from rlvitals.store.home import Home
from rlvitals.store.layout import LiveRunDir, RunDir, SideLog, Stream
from rlvitals.store.lines import encode_row, metric_key
from rlvitals.store.lock import RunLock
from rlvitals.store.process import renew_after_fork
from rlvitals.store.writer import SLOW_SECONDS, LogWriter
from rlvitals.terminal import logger

if TYPE_CHECKING:  # most runs use none of them
    from rlvitals.capture.phases import Hook, Phase, Timer
    from rlvitals.capture.progress import Progress
    from rlvitals.store.images import Room
    from rlvitals.store.rollouts import RolloutWriter

T = TypeVar("T")

_clock, _isfinite, _write = time.time, math.isfinite, os.write  # bound once: see Run.log


class Run:
    """A run that this process records. Created by `rlvitals.start`. Use it as a context manager, or call `finish`.

    Example:
        ```python
        import rlvitals

        with rlvitals.start("out/grpo", algorithm="grpo", display="none") as run:
            for step in range(1, 11):
                run.log({"reward": 0.1 * step, "kl": 0.001 * step}, step=step)
            run.log_eval({"accuracy": 0.85}, step=10)
            print(run.verdict[0], len(run.findings))  # healthy 0
        ```
    """

    def __init__(
        self,
        run_dir: LiveRunDir,
        settings: Settings,
        info: RunInfo,
        attempt: Attempt,
        *,
        rank: int,
        lock: RunLock | None,
        last_step: int,
    ) -> None:
        self.settings = settings
        self.rank = rank
        self._dir = run_dir
        self._attempt = attempt
        self._number = attempt.number
        self._file_lock = lock
        self.last_step = last_step
        """The step of the last row; -1 before the first."""
        self._warn_once = Once()
        self._intake = Intake(logger.warning, strict=settings.strict)
        self._card = Identity(
            run_dir, settings, info, attempt, lock=lock, counts=self._counts, warn_once=self._warn_once
        )
        self._home = Home(
            run_dir,
            info.id,
            is_strangers=self._card.is_strangers,
            restore=self._card.restore,
            notify=logger.warning,
        )
        self._writers: dict[Stream | SideLog, LogWriter] = {}
        self._rollouts: dict[Stream, RolloutWriter] = {}
        self._rollout_bytes_seen = -1
        self._image_room: Room | None = None
        self._pending = PendingRow(self._record, self._warn_once)
        self._recording = True
        self._closed_because = "the run is finished"
        self._shown: Mapping[str, Any] = {}
        self._vetted: list[str] = []  # the names of the last plain row in order; they are already checked
        self._forwarding: Forwarding | None = None
        self._display = Display(settings, info, rank=rank)
        self._writer = self._open_log("train")
        self._lock = self._writer.lock  # shared with the writer: each row takes only one lock
        renew_after_fork(self, "_lock")
        self._monitor = LiveMonitor(
            run_dir, settings, info, attempt, rank=rank, lock=self._lock, append=self._append_finding
        )
        self._is_watched = self._display.is_on or self._monitor.is_on
        self._live_card: LiveCard | None = None
        if self._monitor.is_on and rank == 0 and settings.display == ALARMS and in_notebook():
            self._live_card = LiveCard(self)
            self._monitor.show_in(self._live_card)
        self._card.begin()
        self.is_measuring = False
        """Whether there may be measurements to add to a row."""
        self._measurements = Measurements(
            self, run_dir, attempt, self._append_beside, see_sample=self._monitor.take_sample
        )
        self._pulse = Pulse(self._beat, beat_seconds(settings.fsync))
        endings.watch(self)

    @property
    def dir(self) -> str:
        """The run's directory."""
        return str(self._dir.root)

    def place(self) -> RunDir:
        """The run's current paths, after checking whether the directory was renamed."""
        with self._lock:
            if self._recording:
                self._writer.verify()
        return self._dir

    @property
    def id(self) -> str:
        """The run's unique id."""
        return self._card.info.id

    @property
    def name(self) -> str:
        return self._card.info.name

    @property
    def attempt(self) -> int:
        """1 for the first start; each resume adds one."""
        return self._attempt.number

    @property
    def status(self) -> Status:
        return self._card.info.status

    @property
    def left_out(self) -> dict[str, dict[str, Any]]:
        """Unsupported values that were dropped so far: name -> {count, reason}."""
        return self._intake.left_out

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append one row. The default `step` is one more than that of the last row.

        Values may be numbers, numpy and torch scalars, booleans, mergeable values and short texts. Names in nested
        mappings are joined with `/`. Unsupported values are dropped with a warning; see `left_out`. Numbers on a CUDA
        device are copied asynchronously: the next call or `flush` writes their row.
        """
        try:
            with self._lock:
                if self.is_measuring:
                    metrics = self._measurements.join(metrics)
                # The common row is written inline. Between two training steps the caches go cold, and then each
                # further function or object costs a microsecond. Unusual rows take the slow path below.
                writer, written = self._writer, 0
                try:
                    if (
                        type(step) is int
                        and -MAX_STEP <= step <= MAX_STEP
                        and type(metrics) is dict
                        and list(metrics) == self._vetted
                        and PLAIN.issuperset(map(type, values := metrics.values()))
                        and _isfinite(sum(values))
                        and self._recording
                        and writer.is_plain
                    ):
                        now = _clock()
                        line = encode_row(step, now, self._number, metrics)
                        written = _write(writer.fd, line)
                        self.last_step = step
                except Exception:  # noqa: BLE001
                    pass  # the slow path reports the error, or handles an integer beyond 64 bits
                if written:
                    if written == len(line):
                        writer.rows_written += 1
                        if (after := _clock()) >= writer.next_verify or after - now > SLOW_SECONDS:
                            writer.look_after(now)
                    else:
                        writer.complete(line, written)
                    if self._is_watched:
                        self._show(self.last_step, metrics, now)
                    return
                if not self._takes("a row"):
                    return
                if type(step) is not int or not -MAX_STEP <= step <= MAX_STEP:
                    step = self.last_step + 1 if step is None else self._whole_step(step)
                self._pending.write()
                now = time.time()
                if self._pending.hold(metrics, step, now):
                    self.last_step, self._vetted = step, NO_ROW
                    return
                self._record(metrics, step, now)
        except BadValue:
            raise
        except Exception as error:  # noqa: BLE001 - like guard.guarded, without its extra object for each row
            self._pending.not_recorded(error)

    def flush(self, seconds: float | None = None) -> None:
        """Write the row whose numbers are still being copied from a device, if any. Waits at most `seconds` for them.
        Most other methods flush as well.
        """
        with self._lock:
            self._pending.flush(seconds)

    def log_eval(
        self, stats: Mapping[str, Any], step: int | None = None, *, whole: Mapping[str, Any] | None = None
    ) -> None:
        """Record one evaluation: a row in `logs/eval_metrics.jsonl`, and all values, including lists and others that a
        row cannot hold, in `eval_logs/eval_step_0010.json`.

        The default `step` is `stats["step"]`, or the last logged step. `whole` replaces the file's content if it should
        hold more than the row; an empty mapping writes no file.
        """
        with guarded(partial(self._not_recorded, "an evaluation"), but=(BadValue,)), self._lock:
            if not self._takes("an evaluation"):
                return
            self._pending.write()
            given = stats.get("step") if step is None else step
            number = self._past_step(given)
            row = {key: value for key, value in stats.items() if key != "step"}
            now = time.time()
            self._writer.verify()  # the directory may have been renamed
            writer = self._writers.get("eval") or self._open_log("eval")
            writer.append(self._line(without_sequences(row), number, now))
            kept = row if whole is None else whole
            if self.rank == 0 and whole != {}:
                problem = write_evaluation(self._dir, kept, number, sync=self.settings.fsync == "always")
                if problem:
                    self._warn_once(problem, "eval file")
            self._monitor.look(number, self._shown, now, "eval")

    def log_groups(self, groups: Any, step: int | None = None, *, stream: Stream = "train") -> None:
        """Record rollouts, group by group, in `logs/rollouts/`; those of an evaluation (`stream="eval"`) in
        `eval_logs/rollouts/`. See docs/rollouts.md.

        Like a row, rollouts are written when the call returns: there is no queue that a kill could lose. 64 rollouts of
        8 KB take a few milliseconds. Unsupported values are dropped with a warning; `strict` raises.
        """
        from rlvitals.store.rollout_forms import groups_of, rounded
        from rlvitals.store.rollouts import group_line

        self.flush()  # a row that waits for a device is written first
        with guarded(partial(self._not_recorded, "rollouts"), but=(BadValue,)):
            number, now = self._past_step(step), time.time()
            taken = [rounded(group) for group in groups_of(groups, self._leave_out)]
            lines = [group_line(group, number, self.attempt, now) for group in taken]
            with self._lock:
                if lines and self._takes("rollouts"):
                    self._writer.verify()  # the directory may have been renamed
                    self._append_groups(lines, number, stream)
                    if stream == "train":
                        self._monitor.take_groups(taken, number)
            self._monitor.relieve()

    def log_distribution(self, distributions: Mapping[str, Any], step: int | None = None) -> None:
        """Record the distribution of values at a step: `{"token_entropy": tensor}`, a list, array or tensor per name.

        `logs/distributions.jsonl` stores the count, the mean and 21 quantiles of each. The dashboard draws them as
        percentile bands and histograms over the steps. It draws rewards and lengths of recorded rollouts without this
        call. Each rank writes its own log; the dashboard shows rank 0's.
        """
        from rlvitals.store.distributions import MOST_NAMES, sketch_of

        with guarded(partial(self._not_recorded, "a distribution"), but=(BadValue,)):
            number, now = self._past_step(step), time.time()
            sketches: dict[str, Any] = {}
            for name, values in list(distributions.items())[:MOST_NAMES]:
                sketch = sketch_of(flat_numbers(values))
                if sketch is None:
                    self._leave_out(f"the distribution {name!r} is dropped: it has no finite value")
                else:
                    sketches[metric_key(str(name))] = sketch.stored
            if len(distributions) > MOST_NAMES:
                self._leave_out(f"{len(distributions)} distributions in one call; the first {MOST_NAMES} are kept")
            if sketches and self._takes("a distribution"):
                self._append_beside("distributions", encode_row(number, now, self._number, sketches))

    def log_image(self, name: str, image: Any, step: int | None = None, *, caption: str = "") -> None:
        """Record an image at a step: the bytes of a PNG, an array or tensor of pixels (height x width, with 1, 3 or 4
        channels; integers from 0 to 255 or fractions from 0 to 1), a PIL image or a matplotlib figure.

        `logs/images.jsonl` stores at most 256 images per run, of at most 1 MiB each and 32 MiB together. The dashboard
        shows them with a slider over the steps. Unsupported images are dropped with a warning. Each rank writes its own
        log; the dashboard shows rank 0's.
        """
        from rlvitals.capture.pictures import png_of
        from rlvitals.store.images import MOST_LETTERS, Image, Room

        with guarded(partial(self._not_recorded, "an image"), but=(BadValue,)):
            number, now = self._past_step(step), time.time()
            try:
                png = png_of(image)
            except (TypeError, ValueError) as error:
                return self._leave_out(f"the image {name!r} is dropped: {words_of(error)}")
            text = str(caption).encode("utf-8", "replace").decode()[:MOST_LETTERS]
            key = metric_key(str(name).encode("utf-8", "replace").decode())
            line = encode_row(number, now, self._number, {key: Image(number, self._number, key, png, text).fields})
            with self._lock:
                if not self._takes("an image"):
                    return None
                self._image_room = self._image_room or Room(self._dir.log("images", self.rank))
                refusal = self._image_room.refusal(line)
                if not refusal:
                    self._append_beside("images", line)
            if refusal:
                self._leave_out(f"the image {name!r} is dropped: {refusal}")
        return None

    def request(self, *, everywhere: bool = True) -> Request | None:
        """The open request to the trainer, or None. `rlvitals.Actions` carries requests out and answers them.

        With `everywhere`, all torch.distributed ranks must call this; each gets rank 0's request.
        """
        self.flush()
        return self._monitor.request(everywhere=everywhere)

    def look_for_checkpoints_in(self, folder: Path) -> None:
        """Set the folder where the trainer saves checkpoints, if it is not the run's directory."""
        self._monitor.look_for_checkpoints_in(folder)

    @property
    def findings(self) -> list[Finding]:
        """The monitor's findings so far, in order. Empty on ranks other than 0."""
        self.flush()
        return self._monitor.findings

    @property
    def verdict(self) -> tuple[str, str]:
        """The verdict that `check` would report now (healthy, watch, act or cannot judge), and the reason."""
        return self._monitor.verdict

    def take_findings(self, found: list[Finding], standing: Iterable[str]) -> None:
        """Record and report the findings of an epoch tracker. Called by `MetricsTracker`."""
        with self._lock:
            self._pending.flush()
            self._monitor.take_from_epochs(found, standing, time.time())

    def progress(self, iterable: Iterable[T], **look: Any) -> Progress[T]:
        """Iterate with a bar on stderr: `epoch=3, epochs=10`, or `evaluating=True`. See `capture.progress.Progress`."""
        self.flush()
        self._is_watched = True
        return self._display.progress(iterable, look)

    def phase(self, name: str, *, onload: Hook = None, offload: Hook = None, memory: bool = True) -> Phase:
        """Measure a block: `time/{name}/...` and `memory/{name}/...` in the next row. See `capture.phases`."""
        if self._pending.row is not None:
            self.flush()
        return self._measurements.phase(name, onload, offload, memory)

    def timer(self, name: str) -> Timer:
        """Measure the seconds of a block: only `time/{name}` in the next row."""
        if self._pending.row is not None:
            self.flush()
        return self._measurements.timer(name)

    def count(self, *, tokens: float = 0, samples: float = 0) -> None:
        """Count processed tokens and samples: `system/tps` and `system/samples` in the next row."""
        if self._pending.row is not None:
            self.flush()
        self._measurements.count(tokens, samples)

    def finish(self, status: Status | None = None, error: BaseException | str | None = None) -> None:
        """Close the run: write everything and record the status. A second call does nothing. The default status depends
        on the error; without an error it is "finished".
        """
        if status is None:
            status = endings.status_after(error)
        self._monitor.settle()
        self._monitor.recheck(is_last=True)
        with self._lock:
            self.flush()
            if not self._recording:
                return
            self._monitor.take_last_rows()
            self._recording = False
        endings.unwatch(self)
        self._pulse.stop()
        self._measurements.stop()
        for writer in self._all_writers:
            if writer.catch_up() and self.settings.fsync != "never":
                writer.sync()
            writer.close()
        with guarded(self._miss_beat):
            self._thin_rollouts()
        described = endings.described(error, with_secrets(self.settings))
        self._card.save(status=status, ended=round(time.time(), 3), error=described)
        if self.settings.fsync != "never":
            self._card.sync()
        self._display.finish(status, described)
        self._monitor.close(status)  # while the directory is locked: it may write to the health log
        if self._file_lock is not None:
            self._file_lock.release()
        self._home.close()
        if self._forwarding is not None:
            self._forwarding.keep_up()
            self._forwarding.wait(self.settings.tracker_wait)
        if self.left_out:
            logger.warning("values dropped from %s: %s", self.dir, self._intake.summary())

    ends_by_steps = False
    """Whether a run that a clean exit closes counts as finished only after the planned steps. For trainers that do not
    notify their logger when they end."""

    def finish_by_steps(self) -> None:
        """Close a run whose ending is unknown. Before the planned steps, its status is "interrupted"."""
        planned, last = self.settings.total_steps, self.last_step
        if planned is not None and last < planned:
            self.finish("interrupted", f"ended silently at step {last} of {planned}")
        else:
            self.finish()

    def forward_to(self, trackers: Mapping[str, Mapping[str, Any]]) -> None:
        """Start the process that sends rows to the trackers and checks for stalls. Called by `rlvitals.start`."""
        self._forwarding = start_following(self._dir, self.settings, trackers, self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.close_at_exit(error)

    def _repr_html_(self) -> str:
        """The card that a notebook shows: the directory, the last row and the findings."""
        from rlvitals.render.notebook import CardSign, run_card
        from rlvitals.render.numbers import number
        from rlvitals.store.reader import last_row

        row = last_row(self._dir.train_log)
        total = f" of {number(self.settings.total_steps)}" if self.settings.total_steps else ""
        step = "no rows yet" if self.last_step < 0 else f"step {number(self.last_step)}{total}"
        numbers = row.numbers if row else {}
        names = self._monitor.names.vital_signs(list(numbers))
        courses = self._live_card.points if self._live_card is not None else {}
        values = [CardSign(name, numbers[name], courses.get(name, ())) for name in names]
        return run_card(self.name, [self.status, step, self.dir], self.verdict, values, by_gravity(self.findings))

    # `endings` calls these when the process ends without finish().
    def interrupt(self) -> None:
        self.flush(LAST_WAIT_SECONDS)
        for writer in self._all_writers:
            writer.tend()
            if writer.catch_up(LAST_WAIT_SECONDS):
                writer.sync()
        self._card.save(status="interrupted")

    def close_at_exit(self, error: BaseException | None) -> None:
        status = endings.status_of(error) if isinstance(error, SystemExit) else None
        if status == 0:
            error = None
        if status in endings.INTERRUPTED:
            self.finish("interrupted", error)
        elif self.status == "interrupted" and (error is None or status is not None):
            self.finish("interrupted", error)  # the user's SIGTERM handler called sys.exit()
        elif error is None and self.ends_by_steps:
            self.finish_by_steps()
        else:
            self.finish(error=error)

    def detach(self) -> None:
        self._recording = False
        self._monitor.detach()
        self._closed_because = "this is a forked process, and only the process that started the run records it"
        self._pending.forget()

    def _show(self, step: int, row: Mapping[str, Any], now: float) -> None:
        """Pass a durable row to the display, the monitor and the notebook card."""
        if self._display.is_on:
            self._display.step(step, row, now)
        self._monitor.look(step, row, now)
        if self._live_card is not None:
            self._live_card.see(step, row)

    def _record(self, metrics: Mapping[str, Any], step: int, now: float) -> None:
        self._writer.append(self._line(metrics, step, now))
        self._vetted = self._intake.plain_names
        self.last_step = step
        if self._is_watched:
            self._show(step, self._shown, now)

    def _line(self, metrics: Mapping[str, Any], step: int, now: float) -> bytes:
        """One row as a line of the log."""
        if type(metrics) is dict and self._intake.is_plain(metrics):
            self._shown = metrics
            try:
                return encode_row(step, now, self._number, metrics)
            except (TypeError, ValueError):  # an integer beyond 64 bits
                pass
        self._shown = taken = self._intake.take(metrics)
        return encode_row(step, now, self._number, taken)

    def _takes(self, what: str) -> bool:
        """Whether the run still records; logs a warning if not."""
        if not self._recording:
            self._warn_once(f"{what} for {self.dir} cannot be recorded: {self._closed_because}", what)
        return self._recording

    def _not_recorded(self, what: str, error: Exception) -> None:
        self._warn_once(f"{what} could not be recorded: {words_of(error)}", f"{what} {type(error)}")

    def _leave_out(self, sentence: str) -> None:
        if self.settings.strict:
            raise BadValue(sentence)
        self._warn_once(sentence, sentence[:40])

    def _append_groups(self, lines: list[bytes], step: int, stream: Stream) -> None:
        from rlvitals.store.rollouts import RolloutWriter

        if stream not in self._rollouts:
            syncs = self.settings.fsync != "never"
            self._rollouts[stream] = RolloutWriter(self._open_writer, self._dir, self.rank, stream, sync=syncs)
        try:
            self._rollouts[stream].append(lines, step)
        except OSError as error:
            message = f"cannot write rollouts: {error.strerror or error}. They are kept in memory and tried again"
            self._warn_once(message, "rollouts cannot be written")

    def _past_step(self, given: Any) -> int:
        """The given step, or that of the last row."""
        return max(self.last_step, 0) if given is None else self._whole_step(given)

    def _whole_step(self, step: Any) -> int:
        number = self._intake.whole("step", step, "the step after the last row is used instead")
        return self.last_step + 1 if number is None else number

    def _append_finding(self, line: bytes) -> bool:
        """Append a line to the health log; False if it fails. The training log's writer reports disk errors."""
        try:
            with self._lock:
                if self._recording:  # a closed log is not opened again
                    self._writer.verify()
            append_event(self._dir, line, sync=self.settings.fsync == "always")
        except OSError:
            return False
        return True

    def _append_beside(self, log: SideLog, line: bytes) -> None:
        try:
            with self._lock:
                if self._recording:
                    (self._writers.get(log) or self._open_log(log)).append(line)
        except OSError as error:
            self._warn_once(f"cannot write {self._dir.log(log, self.rank)}: {error.strerror or error}", log)

    def _open_log(self, log: Stream | SideLog) -> LogWriter:
        writer = self._writers[log] = self._open_writer(lambda: self._dir.log(log, self.rank))
        return writer

    def _open_writer(self, place: Callable[[], Path]) -> LogWriter:
        return LogWriter(place, home=self._home, notify=logger.warning, fsync_each=self.settings.fsync == "always")

    @property
    def _all_writers(self) -> list[LogWriter | RolloutWriter]:
        return [*self._writers.values(), *self._rollouts.values()]

    def _thin_rollouts(self) -> None:
        """Keep the rollouts within their size limit. All ranks list the same files; each deletes only its own."""
        if self.settings.rollout_megabytes is None or not self._rollouts:
            return
        written = sum(writer.bytes_written for writer in self._rollouts.values())
        if written == self._rollout_bytes_seen:
            return
        from rlvitals.store.pruning import rollouts_beyond

        later = False
        for stream, writer in list(self._rollouts.items()):
            is_open = writer.open_paths
            for file in rollouts_beyond(self._dir, self.settings.rollout_megabytes * 2**20, stream):
                if file.path in is_open:
                    later = True
                elif file.rank == self.rank:
                    file.path.unlink(missing_ok=True)
        self._rollout_bytes_seen = -1 if later else written

    def _beat(self) -> None:
        with guarded(self._miss_beat):
            for writer in self._all_writers:
                writer.tend()
                if isinstance(self.settings.fsync, float):
                    writer.sync()
            self._thin_rollouts()
            with self._lock:
                self._pending.flush_if_ready()
                if self._recording:
                    has_clock = self._forwarding is not None and self._forwarding.has_clock
                    self._monitor.tick(time.time(), self._measurements.open_phases(), has_clock=has_clock)
            self._monitor.recheck()
            if self._file_lock is not None:
                if not self._file_lock.is_ours() and self._dir.lock.exists():
                    problem = f"{self._dir.lock} names another writer now; two processes may be recording {self.dir}"
                    self._warn_once(problem, "lock")
                self._file_lock.beat()
                if self._forwarding is not None:
                    self._forwarding.keep_up()
                    self._forwarding.report()
                self._card.save_counts()

    def _miss_beat(self, error: Exception) -> None:
        if not isinstance(error, OSError):  # the writers report disk errors
            self._warn_once(f"error in the background thread: {words_of(error)}", f"pulse {type(error)}")

    def _counts(self) -> dict[str, Any]:
        logs: tuple[Stream, Stream] = ("train", "eval")
        dropped = sum(self._writers[log].rows_dropped for log in logs if log in self._writers)
        return {"left_out": dict(self.left_out), "rows_dropped": dropped}
