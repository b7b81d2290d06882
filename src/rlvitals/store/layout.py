"""The paths of a run's files. No other module contains a file name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, Protocol, Self

from rlvitals.records import Stream as Stream  # noqa: PLC0414 - re-exported next to its logs

SideLog = Literal["phases", "system", "distributions", "images"]
"""Logs besides the rows, with their own axes."""

STREAMS: tuple[Stream, Stream] = ("train", "eval")

Forwarded = Stream | Literal["system"]
"""The rows that are forwarded to trackers."""

Followed = Forwarded | Literal["findings"]
"""The logs that a tracker may follow: rows, and the health log."""

_FILE_NAMES: dict[str, str] = {"train": "training_metrics", "eval": "eval_metrics"}


def kept_folder(path: str | os.PathLike[str]) -> Path:
    """A folder that a process keeps writing to, with links resolved. It stays the same if the working directory or a
    link changes later. Otherwise the open logs would stay in the old folder and new files would go to another one.
    """
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError):  # a loop of links: opening the folder raises an error
        return Path(path).absolute()


def kept_file(path: str | os.PathLike[str]) -> Path:
    """An absolute path for a file or folder that is opened later, independent of later changes of the working
    directory. Links are followed when it is opened.
    """
    return Path(path).expanduser().absolute()


def as_named(named: Path, kept: Path) -> Path:
    """The name that the user gave a kept path, while it still refers to that path; for messages."""
    return named if named.absolute() == kept else kept


class _Below:
    """A path below the root of its owner; it moves with the root."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, owner: _Rooted, kind: type[_Rooted]) -> Path:
        return owner.root.joinpath(*self._parts)


class _Rooted(Protocol):
    @property
    def root(self) -> Path: ...


class RunDir:
    """The paths of one run. Does not read or write files."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def root(self) -> Path:
        return self._root

    @classmethod
    def kept(cls, folder: str | os.PathLike[str]) -> Self:
        """The run in a folder that stays the same as long as the process runs."""
        return cls(kept_folder(folder))

    info = _Below("run.json")
    config = _Below("config.json")
    lock = _Below("run.lock")
    heartbeat = _Below("heartbeat")
    attempts = _Below("attempts.jsonl")
    logs = _Below("logs")
    train_log = _Below("logs", "training_metrics.jsonl")
    eval_log = _Below("logs", "eval_metrics.jsonl")
    findings = _Below("logs", "findings.jsonl")
    ranks = _Below("logs", "ranks")
    rollouts = _Below("logs", "rollouts")
    eval_rollouts = _Below("eval_logs", "rollouts")
    """Rollouts of evaluations, separate from training rollouts, so that no count or mean mixes the two."""
    eval_logs = _Below("eval_logs")
    eval_control = _Below("eval_logs", "control.json")
    """Rewards of the policy before training; later evaluations are compared with them."""
    sinks = _Below("sinks")
    notify = _Below("notify")
    """The messages that each notification service has been sent."""
    index = _Below("index")
    imported = _Below("import.json")
    """How far the import of a tracker's run has come."""
    asks = _Below("asks")
    """Requests of users to the trainer of a live run."""

    @property
    def epochs(self) -> EpochDir:
        return EpochDir(self.root / "metrics")

    def log(self, stream: Followed | SideLog, rank: int = 0) -> Path:
        """The file one rank's rows of one stream are in.

        >>> RunDir(Path("out")).log("train", 3).as_posix()
        'out/logs/ranks/rank-3.jsonl'
        >>> RunDir(Path("out")).log("system").as_posix()
        'out/logs/system.jsonl'
        """
        if rank == 0:
            return self.logs / f"{_FILE_NAMES.get(stream, stream)}.jsonl"
        return self.ranks / (f"rank-{rank}.jsonl" if stream == "train" else f"rank-{rank}-{stream}.jsonl")

    def eval_file(self, step: int) -> Path:
        """One evaluation's own file.

        >>> RunDir(Path("out")).eval_file(10).name
        'eval_step_0010.json'
        """
        return self.eval_logs / f"eval_step_{step:04d}.json"

    def rollout_file(self, step: int, rank: int = 0, stream: Stream = "train") -> Path:
        """The rollouts one rank recorded at one step.

        >>> RunDir(Path("out")).rollout_file(10).as_posix()
        'out/logs/rollouts/step-000010.jsonl'
        """
        name = f"step-{step:06d}.jsonl" if rank == 0 else f"step-{step:06d}-rank-{rank}.jsonl"
        return self._rollouts_of(stream) / name

    def rollout_logs(self, stream: Stream = "train") -> list[Path]:
        """Every file of rollouts, by name. A file may be replaced by its archive."""
        folder = self._rollouts_of(stream)
        found = {path.with_name(path.name.removesuffix(".archive")) for path in folder.glob("step-*.jsonl*")}
        return sorted(path for path in found if path.suffix == ".jsonl")

    def _rollouts_of(self, stream: Stream) -> Path:
        return self.rollouts if stream == "train" else self.eval_rollouts

    def rank_numbers(self, stream: Stream | SideLog) -> list[int]:
        """The other ranks that have written to this log, in order."""
        suffix = ".jsonl" if stream == "train" else f"-{stream}.jsonl"
        found = []
        for path in self.ranks.glob(f"rank-*{suffix}*"):
            number = path.name.removesuffix(".archive").removeprefix("rank-").removesuffix(suffix)
            if number.isdecimal() and has_bytes(path):  # a rank that records only rollouts has an empty log
                found.append(int(number))
        return sorted(set(found))

    def checkpoints(self) -> dict[int, Path]:
        """The trainer's checkpoint folders, `checkpoint-50`, by step, in order."""
        found = {}
        for path in self.root.glob("checkpoint-*"):
            number = path.name.removeprefix("checkpoint-")
            if number.isdecimal() and os.path.isdir(path):
                found[int(number)] = path
        return dict(sorted(found.items()))

    @property
    def holds_run(self) -> bool:
        """Whether the directory holds a run: an identity card, or a log that is not empty."""
        return os.path.exists(self.info) or has_bytes(self.train_log) or has_bytes(archive_of(self.train_log))

    @property
    def written_paths(self) -> list[Path]:
        """All files that rlvitals writes here, which overwriting a run removes. The user's files are not included."""
        whole = [
            self.info,
            self.config,
            self.attempts,
            self.train_log,
            self.eval_log,
            self.findings,
            self.eval_control,
            self.log("phases"),
            self.log("system"),
            self.log("distributions"),
            self.log("images"),
            *(archive_of(log) for log in (self.train_log, self.eval_log, self.log("phases"), self.log("system"))),
            self.ranks,
            self.rollouts,
            self.eval_rollouts,
            self.index,
            self.sinks,
            self.notify,
            self.asks,
            self.imported,
        ]
        return [*whole, *self.epochs.written_paths, *self.eval_logs.glob("eval_step_*.json")]


class LiveRunDir(RunDir):
    """The paths of a run that is being recorded. All writers of the run share this object, so that all of them follow
    when the directory is renamed.
    """

    def move_to(self, root: Path) -> None:
        """Set the new location of the run."""
        self._root = root


class EpochDir:
    """The paths of one folder of epochs: a run's `metrics/`, or any other."""

    def __init__(self, folder: Path) -> None:
        self.folder = self.root = folder

    record = _Below("epochs.jsonl")
    table = _Below("training_metrics.csv")
    history = _Below("training_metrics.json")
    plots = _Below("plots")

    @property
    def written_paths(self) -> list[Path]:
        """All files that rlvitals writes there."""
        plots = ("training_progress", "policy_metrics", "evaluation_metrics")
        return [self.record, self.table, self.history, *map(self.plot, plots)]

    def plot(self, name: str) -> Path:
        """The path of one plot.

        >>> EpochDir(Path("out/metrics")).plot("policy_metrics").as_posix()
        'out/metrics/plots/policy_metrics.png'
        """
        return self.plots / f"{name}.png"


_RUN_FILE = re.compile(
    r"run\.json|config\.json|attempts\.jsonl|run\.lock|heartbeat"
    r"|logs/(?:training_metrics|eval_metrics|findings|phases|system|distributions|images)\.jsonl(?:\.archive)?"
    r"|logs/ranks/rank-[0-9]{1,6}(?:-eval|-phases|-system|-distributions|-images)?\.jsonl(?:\.archive)?"
    r"|(?:logs|eval_logs)/rollouts/step-(?:-?[0-9]{1,19})(?:-rank-[0-9]{1,6})?\.jsonl(?:\.archive)?"
    r"|eval_logs/(?:eval_step_-?[0-9]{1,19}|control)\.json"
    r"|metrics/(?:epochs\.jsonl|training_metrics\.csv|training_metrics\.json)"
)


def is_run_file(name: str) -> bool:
    """Whether a path below a run's folder is a recorded file of the run. The index (which is derived), trackers' files,
    checkpoints and plots are not.

    >>> is_run_file("logs/training_metrics.jsonl"), is_run_file("checkpoint-50/model.bin"), is_run_file("../run.json")
    (True, False, False)
    """
    return _RUN_FILE.fullmatch(name) is not None


def is_appended(name: str) -> bool:
    """Whether a run's file is only appended to. Other files are replaced whole."""
    return name.endswith(".jsonl")


def archive_of(log: Path) -> Path:
    """The archive that replaces a log.

    >>> archive_of(Path("training_metrics.jsonl")).name
    'training_metrics.jsonl.archive'
    """
    return log.with_name(f"{log.name}.archive")


def has_bytes(path: Path) -> bool:
    """Whether there is a file that is not empty."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
