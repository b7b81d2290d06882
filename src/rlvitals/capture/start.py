"""Opens a run: checks settings, locks the directory, starts the attempt. Errors are raised here, with the fix."""

from __future__ import annotations

import contextlib
import errno
import json
import operator
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

from rlvitals.capture import console, identity
from rlvitals.capture.forwarding import kept_kwargs, stop_followers, trackers_of
from rlvitals.capture.live_monitor import check_rules, check_scanners, kept_rules
from rlvitals.capture.run import Run
from rlvitals.codec import to_json
from rlvitals.config import Settings, flatten, planned_steps, resolve, resolved, with_secrets
from rlvitals.errors import ConfigError, RunError, RunExists
from rlvitals.records import Attempt, Count, RunInfo
from rlvitals.store.archive import expand_logs
from rlvitals.store.cards import new_id, read_attempts, read_config, read_info, sweep
from rlvitals.store.fields import record_of
from rlvitals.store.files import make_folder, read_json, remove_paths
from rlvitals.store.layout import LiveRunDir, RunDir, kept_file, kept_folder
from rlvitals.store.lock import RunLock, is_recorded, read_holder, refuse_other_writer
from rlvitals.store.process import this_process
from rlvitals.store.reader import last_row, last_rows
from rlvitals.terminal import logger
from rlvitals.version import __version__

Resume = bool | int | str | os.PathLike[str]

RANK_WAIT_SECONDS = 60.0

_NOT_SETTINGS = {"output_dir", "config", "resume", "overwrite", "unknown"}
"""The parameters of `start` that are not settings."""


@dataclass(frozen=True, slots=True)
class _TrainerState:
    """The part of a checkpoint's `trainer_state.json` that is read here."""

    global_step: Count


def start(  # noqa: D417 - the settings are described once, in Settings
    output_dir: str | os.PathLike[str],
    *,
    name: str | None = None,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    algorithm: str | None = None,
    framework: str | None = None,
    total_steps: int | None = None,
    track_with: str | Sequence[str] | None = None,
    tracker_kwargs: Mapping[str, Any] | None = None,
    tracker_wait: float | None = None,
    monitor: bool | None = None,
    rules: str | os.PathLike[str] | Sequence[Any] | None = None,
    scanners: Any = None,
    mapping: Mapping[str, str] | None = None,
    actions: str | None = None,
    notify: str | Sequence[str | Mapping[str, Any]] | Mapping[str, Any] | None = None,
    resume: Resume | None = False,
    overwrite: bool = False,
    strict: bool | None = None,
    fsync: str | float | None = None,
    display: str | None = None,
    display_layout: str | None = None,
    display_every: int | None = None,
    hardware: float | bool | None = None,
    rollout_megabytes: float | bool | None = None,
    names: str | None = None,
    rank: int | None = None,
    mask: str | Sequence[str] | None = None,
    unmask: str | Sequence[str] | None = None,
    **unknown: Any,
) -> Run:
    """Open a run in a directory and return the recorder.

    Several ranks may call this. Rank 0 owns the run; every other rank writes its own files in the same directory.

    Args:
        output_dir: The run's directory. If it already holds a run, pass `resume` or `overwrite`.
        config: The trainer's own settings, which are recorded: a mapping, or the path of a YAML file. Its section
            `rlvitals` may hold the settings below.
        resume: Continue the existing run: True, or the step or checkpoint that the weights come from.
        overwrite: Remove the existing run.
        **unknown: Unknown names raise an error that suggests the nearest setting.

    The other parameters are the settings of a run. `rlvitals.config.Settings` explains each.

    Example:
        ```python
        import rlvitals

        with rlvitals.start("out/kto", name="kto-7b", config={"learning_rate": 5e-7}, total_steps=3) as run:
            for step in range(1, 4):
                run.log({"loss": 0.6 / step, "rewards/margins": 0.1 * step}, step=step)
        print(run.status, run.last_step)  # finished 3
        ```
    """
    given = dict(locals())  # every setting by its name
    settings = resolve(config, {name: given[name] for name in given if name not in _NOT_SETTINGS} | unknown)
    settings = keep_paths(settings)
    trackers = check_settings(settings)
    run_dir = LiveRunDir.kept(output_dir)
    own_rank = identity.launched().rank if settings.rank is None else settings.rank
    if own_rank > 0:
        return _start_rank(run_dir, settings, own_rank)
    if settings.notify.get("to"):  # only rank 0 needs the environment variables
        from rlvitals.notify.targets import check_targets

        check_targets(settings.notify)
    if resume is None:
        resume = False
    if resume is not False and overwrite:
        raise ConfigError(
            "resume and overwrite contradict each other: resume keeps the run that is there, overwrite removes it"
        )
    if resume is False and not overwrite and not is_recorded(run_dir):
        refuse_existing(run_dir)
    try:
        make_folder(run_dir.root)
        lock = RunLock(run_dir)
        lock.acquire()
    except OSError as error:
        raise _unwritable(run_dir, error) from error
    with contextlib.ExitStack() as undo:
        undo.callback(lock.release)
        try:
            run = _open(run_dir, settings, lock, resume, overwrite)
        except OSError as error:
            raise _unwritable(run_dir, error) from error
        undo.pop_all()
    run.forward_to(trackers)
    return run


def check_settings(settings: Settings) -> dict[str, Mapping[str, Any]]:
    """Raise if the trackers, the display or the scanners cannot be used. Returns the trackers."""
    trackers = trackers_of(settings)
    console.check(settings.display, settings.display_layout)
    check_scanners(settings)
    return trackers


def keep_paths(settings: Settings) -> Settings:
    """The same settings with absolute paths for files that are opened later: of trackers, scanners, notification
    targets and the sentinel. The working directory may change before they are opened. Rule files are read and checked
    now.
    """
    check_rules(settings)  # before entries replace their file: an error names the file and the line
    notify = dict(settings.notify)
    if notify.get("sentinel"):
        notify["sentinel"] = str(kept_file(notify["sentinel"]))
    if notify.get("to"):
        notify["to"] = [one | {"file": str(kept_file(one["file"]))} if "file" in one else one for one in notify["to"]]
    scanners = tuple(str(kept_file(item)) if isinstance(item, str) else item for item in settings.scanners)
    return replace(
        settings,
        notify=notify,
        rules=kept_rules(settings.rules),
        scanners=scanners,
        tracker_kwargs=kept_kwargs(settings),
    )


def keep_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments with absolute paths, for a `start` that is called later, perhaps in another process."""
    wanted = ("rules", "scanners", "notify", "track_with", "tracker_kwargs")
    settings = keep_paths(resolve(None, {key: given[key] for key in wanted if key in given}))
    kept = dict(given)
    if given.get("rules") is not None:
        kept["rules"] = settings.rules
    if settings.scanners:
        kept["scanners"] = settings.scanners
    if given.get("tracker_kwargs"):
        kept["tracker_kwargs"] = settings.tracker_kwargs
    if settings.notify:  # the webhook is not resolved: it may name a variable of the other process
        as_given = given["notify"] if isinstance(given["notify"], Mapping) else {}
        meant_now = {key: value for key, value in settings.notify.items() if key in ("sentinel", "to")}
        kept["notify"] = {**as_given, **meant_now}
    if isinstance(given.get("resume"), str | os.PathLike) and Path(given["resume"]).exists():
        kept["resume"] = str(kept_file(given["resume"]))
    return kept


def _open(run_dir: LiveRunDir, settings: Settings, lock: RunLock, resume: Resume, overwrite: bool) -> Run:
    sweep(run_dir)
    stop_followers(run_dir)
    if overwrite and run_dir.holds_run:
        remove_paths(run_dir.written_paths)
    elif resume is not False:
        expand_logs(run_dir)
    else:
        refuse_existing(run_dir)  # checked again: another run may have started and ended before the lock was acquired
    from_step, checkpoint = _origin(run_dir, resume)
    now = round(time.time(), 3)
    own = this_process()
    old = read_info(run_dir) if run_dir.holds_run else None
    before = {key: value for key, value in read_config(run_dir).items() if key != "rlvitals"} if old else {}
    if not settings.config:
        settings = replace(settings, config=before)  # a resume without a config keeps the recorded one
    attempt = Attempt(
        number=_next_attempt(run_dir),
        started=now,
        from_step=from_step,
        from_checkpoint=checkpoint,
        changed=_changes(before, settings) if old else {},
        host=own.host,
        pid=own.pid,
    )
    info = RunInfo(
        id=old.id if old and old.id else new_id(),
        name=settings.name or (old.name if old else run_dir.root.name),
        status="running",
        created=old.created if old else now,
        updated=now,
        written_by=__version__,
        attempt=attempt.number,
        algorithm=settings.algorithm or (old.algorithm if old else None),
        framework=settings.framework or (old.framework if old else None),
        total_steps=settings.total_steps or planned_steps(settings.config) or (old.total_steps if old else None),
        host=own.host,
        pid=own.pid,
        processes=identity.launched().processes,
        python=identity.python_version(),
        platform=identity.platform_name(),
        packages=identity.packages(),
        git=identity.git(),
        command=identity.command(with_secrets(settings)),
    )
    run = Run(run_dir, settings, info, attempt, rank=0, lock=lock, last_step=_last_step(run_dir, 0, from_step))
    if attempt.number > 1:
        origin = f"from step {from_step}" if from_step is not None else "after the last recorded row"
        logger.info("resuming %s: attempt %d, %s", run_dir.root, attempt.number, origin)
    return run


def _unwritable(run_dir: RunDir, error: OSError) -> RunError:
    what = f" ({error.filename})" if error.filename else ""
    return RunError(
        f"cannot write to {run_dir.root}: {error.strerror or error}{what}. Choose another output directory."
    )


WAYS_OUT = (
    "Pass resume=True to continue with it (or resume=STEP, or resume='checkpoint-50', to say where its weights come "
    "from), overwrite=True to remove it, or another output directory."
)


def refuse_existing(run_dir: RunDir, ways_out: str = WAYS_OUT) -> None:
    """Raise RunExists if the directory holds a run."""
    if run_dir.holds_run:
        raise RunExists(f"{run_dir.root} holds a run already. {ways_out}")


def check_place(output_dir: str | os.PathLike[str]) -> None:
    """Raise the errors that `start` would raise for this directory: another process records there, or it cannot be
    written. For callers that start the run later.
    """
    run_dir = RunDir(kept_folder(output_dir))
    refuse_other_writer(run_dir)
    try:
        make_folder(run_dir.root)
        if not os.access(run_dir.root, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(run_dir.root))
    except OSError as error:
        raise _unwritable(run_dir, error) from error


def free_folder(folder: Path) -> Path:
    """The folder, or the first of `folder-2`, `folder-3` ... that holds no run."""
    return next(place for place in _numbered(folder) if not RunDir(place).holds_run)


def newest_folder(folder: Path, is_wanted: Callable[[RunDir], bool]) -> Path:
    """The last of `folder-2`, `folder-3` ... that holds a run and for which `is_wanted` is true; else `folder`."""
    found = folder
    for place in islice(_numbered(folder), 1, None):
        run_dir = RunDir(place)
        if not run_dir.holds_run:
            return found
        if is_wanted(run_dir):
            found = place
    return found


def folder_of_rank_0(folder: Path) -> Path:
    """Wait for rank 0 and return the one of `folder`, `folder-2` ... in which it records. After the timeout, return
    `folder`; `start` then raises the error.
    """
    deadline = time.monotonic() + RANK_WAIT_SECONDS
    while time.monotonic() < deadline:
        for place in _numbered(folder):
            if is_recorded(RunDir(place)):
                return place
            if not RunDir(place).holds_run:
                break
        time.sleep(0.05)
    return folder


def _numbered(folder: Path) -> Iterator[Path]:
    yield folder
    yield from (folder.with_name(f"{folder.name}-{number}") for number in count(2))


def _start_rank(run_dir: LiveRunDir, settings: Settings, rank: int) -> Run:
    """Start a rank other than 0: wait until rank 0 has opened the run, then write to the same directory."""
    deadline = time.monotonic() + RANK_WAIT_SECONDS
    while True:
        holder = read_holder(run_dir)
        attempts = read_attempts(run_dir)
        # Rank 0 takes the lock before it records its attempt, so an attempt older than the lock is not the current one.
        if holder is not None and holder.is_live and attempts and attempts[-1].started >= holder.since:
            break
        if time.monotonic() > deadline:
            raise RunError(
                f"rank {rank} waited {RANK_WAIT_SECONDS:.0f} s and rank 0 has not started a run in {run_dir.root}. "
                f"Call rlvitals.start() on rank 0 too, or pass rank=0 to the one process that records."
            )
        time.sleep(0.05)
    info = read_info(run_dir)
    attempt = attempts[-1]
    last_step = _last_step(run_dir, rank, attempt.from_step)
    return Run(run_dir, settings, info, attempt, rank=rank, lock=None, last_step=last_step)


def _last_step(run_dir: RunDir, rank: int, from_step: int | None) -> int:
    """The step after which counting continues: the step that the run resumes from, or the highest step of the newest
    attempt. The last row may have a lower step.
    """
    if from_step is not None:
        return from_step
    newest = last_rows(run_dir.log("train", rank), 1000)
    return max((row.step for row in newest if row.attempt == newest[-1].attempt), default=-1)


def _next_attempt(run_dir: RunDir) -> int:
    numbers = [attempt.number for attempt in read_attempts(run_dir)]
    if run_dir.holds_run:
        last = last_row(run_dir.train_log)
        numbers.append(last.attempt if last else 1 if os.path.exists(run_dir.info) else 0)
    return max(numbers, default=0) + 1


def _origin(run_dir: RunDir, resume: Resume) -> tuple[int | None, str | None]:
    """The step and checkpoint that a resume starts from; (None, None) if the first row decides."""
    if isinstance(resume, bool):
        return None, None
    if not isinstance(resume, str | os.PathLike):
        try:
            step = operator.index(resume)
        except TypeError:
            raise ConfigError(f"resume={resume!r} must be True, a step or a checkpoint, as in resume=50") from None
        if step < 0:
            raise ConfigError(f"resume={step}: the step to resume from cannot be negative")
        return step, None
    path = Path(resume)
    state = next(
        (
            place / "trainer_state.json"
            for place in (path, run_dir.root / path)
            if os.path.exists(place / "trainer_state.json")
        ),
        None,
    )
    if state is not None:
        with contextlib.suppress(OSError, ValueError):
            return record_of(_TrainerState, read_json(state)).global_step, str(resume)
    number = re.search(r"(\d+)$", path.name)
    if number is None:
        raise ConfigError(
            f"resume={str(resume)!r}: no step can be read from the checkpoint's name; pass the step itself, as in "
            f"resume=50"
        )
    return int(number[1]), str(resume)


def _changes(before: dict[str, Any], settings: Settings) -> dict[str, list[Any]]:
    """The trainer's settings that differ from the recorded ones, both in their stored form."""
    kept = json.loads(to_json(resolved(settings)))
    kept.pop("rlvitals")
    old, new = flatten(before), flatten(kept)
    return {key: [old.get(key), new.get(key)] for key in sorted(old | new) if old.get(key) != new.get(key)}
