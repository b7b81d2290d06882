"""One run for all workers of a Ray job, on any node.

    run = rlvitals.adapters.ray.serve("out/grpo", algorithm="grpo")      # the driver
    run.log({"loss": 0.62}, step=10)

    run = rlvitals.adapters.ray.connect(rank=3)                          # any worker: an actor or a task
    run.log({"reward": values.mean(rewards)}, step=10)

The recorder is a named, detached actor. It outlives the driver. If its process dies, Ray restarts it and the run
continues as a new attempt. Workers send rows as asynchronous Ray calls. A row is on disk when its call has returned;
`flush` waits for that. Rows of `rank` 0 are the run's own. Rows of other ranks go to `logs/ranks/rank-N.jsonl`, and
readers merge mergeable values over the ranks.

On storage that all nodes share, the actor is not needed: `rlvitals.start(..., rank=N)` in each worker writes the same
files.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from rlvitals.adapters.plain_values import plain
from rlvitals.capture.actions import shared_request
from rlvitals.capture.run import Run
from rlvitals.capture.start import keep_given, start
from rlvitals.errors import ConfigError, RunError, RunLocked, RunNotFound, needs
from rlvitals.guard import Once, guarded, words_of
from rlvitals.records import Answer, Finding, Request, Status
from rlvitals.store.layout import kept_file, kept_folder
from rlvitals.terminal import logger

NAMESPACE = "rlvitals"
"""Fixed, because a driver without a namespace gets a new one each time and would not find the recorder in it."""

MAX_WAITING = 10_000
"""Rows of a worker that may wait for the recorder. Further rows are dropped and counted, which bounds memory use."""

REQUEST_SECONDS = 10.0
"""How long a trainer waits when it asks the recorder for the doctor's request."""

EXIT_SECONDS = 10.0
"""How long an exiting worker waits for its rows to arrive, and `_end` for the recorder to exit."""


def serve(
    output_dir: str | os.PathLike[str],
    *,
    recorder: str = "rlvitals",
    resume: bool | int | str = False,
    overwrite: bool = False,
    shared_storage: bool = False,
    **settings: Any,
) -> RunClient:
    """Start the recorder of a run and return the driver's client. `settings` are those of `rlvitals.start`.

    The recorder runs on the driver's node, where `output_dir` is. With `shared_storage=True` Ray may restart it on
    another node. A restarted driver passes `resume`, as it would to `rlvitals.start`: a recorder that still runs closes
    its attempt and opens the next.
    """
    ray = _ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if isinstance(settings.get("config"), str | os.PathLike):
        settings["config"] = str(kept_file(settings["config"]))
    settings = keep_given({**settings, "resume": resume})
    resume = settings.pop("resume")
    folder = str(kept_folder(output_dir))
    if not ray.is_initialized():
        ray.init()
    here = ray.get_runtime_context().get_node_id()
    options = {
        "name": recorder,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=shared_storage),
    }
    actor = ray.remote(Recorder).options(**options).remote(folder, settings)
    opening = actor.open.remote(folder, {**settings, "resume": resume, "overwrite": overwrite})
    try:
        ray.get(opening)
    except ray.exceptions.RayTaskError as error:
        if not ray.get(actor.is_recording.remote()):
            _end(actor, recorder)  # frees the name for the next try
        raise error.cause from None
    return RunClient(actor, recorder)


def connect(recorder: str = "rlvitals", *, rank: int = 0) -> RunClient:
    """Join a run that `serve` has started. Workers that log the same metrics should have different ranks."""
    ray = _ray()
    if not ray.is_initialized():
        ray.init()
    try:
        actor = ray.get_actor(recorder, NAMESPACE)
    except ValueError:
        raise RunNotFound(
            f"no recorder is called {recorder!r} in this Ray cluster. Call rlvitals.adapters.ray.serve() in the driver."
        ) from None
    return RunClient(actor, recorder, rank)


def join(output_dir: str | os.PathLike[str], **settings: Any) -> RunClient:
    """Join or start the run of a job whose processes start in any order. The first one starts the recorder, which is
    named after the folder. `settings` are those of `serve`.
    """
    recorder = f"rlvitals {kept_folder(output_dir)}"
    with suppress(RunNotFound):
        client = connect(recorder)
        if client.is_recording:  # else the process that started it has not opened the run yet
            return client
    try:
        return serve(output_dir, recorder=recorder, **settings)
    except RunLocked:  # another process was faster
        return connect(recorder)


class Recorder:
    """The actor. It owns the run and its ranks' files and is the only process that writes them."""

    def __init__(self, folder: str, settings: dict[str, Any]) -> None:
        self._folder = folder
        self._runs: dict[int, Run] = {}
        self._asked: dict[int, Request] = {}
        if _ray().get_runtime_context().was_current_actor_reconstructed:
            # The process died, but its rows are on disk. Calls that Ray repeats continue after them.
            self._runs[0] = start(folder, **{**settings, "resume": True})

    def open(self, folder: str, settings: dict[str, Any]) -> None:
        """Start the run, or its next attempt."""
        if self._runs:
            if folder != self._folder:
                raise ConfigError(
                    f"this recorder is busy with {self._folder}; give the one for {folder} another name, as in "
                    f"recorder='second'"
                )
            if settings["resume"] is False and not settings["overwrite"]:
                raise RunLocked(
                    f"{folder} is already being recorded. Join it with rlvitals.adapters.ray.connect(), or continue "
                    f"it in a new attempt: serve(..., resume=True, a step or a checkpoint)"
                )
            self.finish("interrupted")
        self._folder = folder
        self._runs[0] = start(folder, **settings)

    def is_recording(self) -> bool:
        return bool(self._runs)

    def take(self, method: str, rank: int, row: Any, step: int | None) -> None:
        """Write one row for `log` or `log_eval`, or groups for `log_groups`; durable on return."""
        getattr(self._run_of(rank), method)(row, step)

    def findings(self) -> list[Finding]:
        return self._run_of(0).findings

    def request(self) -> Request | None:
        """The doctor's open request, without its callback `answer`, which stays in this process."""
        request = self._run_of(0).request(everywhere=False)
        if request is None:
            return None
        self._asked[request.number] = request
        return replace(request, answer=None)

    def answer(self, number: int, answer: Answer, text: str) -> None:
        request = self._asked[number]
        if request.answer is not None:
            request.answer(request, answer, text)

    def facts(self) -> dict[str, Any]:
        """The directory, id and attempt of the run, and the pid of this process."""
        run = self._runs[0]
        return {"dir": run.dir, "id": run.id, "attempt": run.attempt, "pid": os.getpid()}

    def finish(self, status: Status | None, error: str | None = None) -> None:
        """Close the other ranks' files, then the run."""
        for rank in sorted(self._runs, reverse=True):
            self._runs.pop(rank).finish(status, error)

    def _run_of(self, rank: int) -> Run:
        if 0 not in self._runs:
            raise RunError(f"the run in {self._folder} is finished")
        if rank not in self._runs:
            self._runs[rank] = start(self._folder, rank=rank)
        return self._runs[rank]


class RunClient:
    """A worker's client of the run: `log` passes a row to Ray and returns. May be passed to other tasks and actors."""

    def __init__(self, actor: Any, recorder: str, rank: int = 0) -> None:
        self.rank = rank
        self.dropped = 0
        """Rows of this worker that did not reach the recorder."""
        self._actor = actor
        self._recorder = recorder
        self._waiting: deque[Any] = deque()
        self._warn_once = Once()
        weakref.finalize(self, _wait_at_end, self._waiting)

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """As `Run.log`, without waiting. The default step follows the last row of this rank."""
        self._send("log", plain, metrics, step)

    def log_eval(self, stats: Mapping[str, Any], step: int | None = None) -> None:
        """As `Run.log_eval`, without waiting. The recorder's process must be able to import the types of all values."""
        self._send("log_eval", dict, stats, step)

    def log_groups(self, groups: Any, step: int | None = None) -> None:
        """As `Run.log_groups`, without waiting. Groups are records, or plain data that any process can read."""
        self._send("log_groups", list, groups, step)

    def request(self, *, everywhere: bool = False) -> Request | None:
        """The doctor's request after the rows that this worker has sent, or None. Waits for the recorder.

        With `everywhere` all torch.distributed ranks must call it; each gets rank 0's request.
        """
        request: Request | None = None
        with guarded(
            lambda error: logger.warning("the recorder %r cannot be asked: %s", self._recorder, words_of(error))
        ):
            request = _ray().get(self._actor.request.remote(), timeout=REQUEST_SECONDS)
        request = None if request is None else replace(request, answer=self._answer)
        return shared_request(request) if everywhere else request

    @property
    def findings(self) -> list[Finding]:
        """The doctor's findings so far, in order."""
        found: list[Finding] = _ray().get(self._actor.findings.remote())
        return found

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every row of this worker is on disk. Returns False if some are not after `timeout` seconds."""
        if self._waiting:
            _ray().wait(list(self._waiting), num_returns=len(self._waiting), timeout=timeout)
        self._take_answers()
        return not self._waiting

    @property
    def is_recording(self) -> bool:
        """Whether the recorder has a run open."""
        return bool(_ray().get(self._actor.is_recording.remote()))

    @property
    def facts(self) -> dict[str, Any]:
        """Directory, id and attempt of the run, and the pid of the recorder."""
        found: dict[str, Any] = _ray().get(self._actor.facts.remote())
        return found

    def finish(self, status: Status | None = None, error: str | None = None) -> None:
        """Close the run for all workers, with a status as in `Run.finish`, and end the recorder. Rows sent later by
        other workers are dropped.
        """
        self.flush()
        _ray().get(self._actor.finish.remote(status, error))
        _end(self._actor, self._recorder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.finish()
        else:
            status: Status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self.finish(status, f"{type(error).__name__}: {error}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rejoin, (self._recorder, self.rank)

    def _send(self, method: str, prepare: Callable[[Any], Any], row: Any, step: int | None) -> None:
        with guarded(lambda error: self._lose(words_of(error))):
            self._take_answers()
            if len(self._waiting) >= MAX_WAITING:
                self._lose(f"the recorder is {MAX_WAITING} rows behind")
            else:
                self._waiting.append(self._actor.take.remote(method, self.rank, prepare(row), step))

    def _answer(self, request: Request, answer: Answer, text: str) -> None:
        self._waiting.append(self._actor.answer.remote(request.number, answer, text))

    def _take_answers(self) -> None:
        """Remove calls that have returned. The recorder processes a worker's rows in order."""
        ray = _ray()
        while self._waiting and ray.wait([self._waiting[0]], timeout=0)[0]:
            with guarded(lambda error: self._lose(str(error).strip().splitlines()[-1])):
                ray.get(self._waiting.popleft())

    def _lose(self, why: str) -> None:
        self.dropped += 1
        self._warn_once(
            f"a row for the recorder {self._recorder!r} is dropped: {why}. Further ones are counted.", key="dropped"
        )


def _end(actor: Any, recorder: str) -> None:
    """Kill a recorder and wait until its name is free. `ray.kill` returns earlier, and a lookup of the name at that
    moment would still return the dying recorder.
    """
    ray = _ray()
    ray.kill(actor)
    deadline = time.monotonic() + EXIT_SECONDS
    with suppress(ValueError):  # no actor of this name
        while ray.get_actor(recorder, NAMESPACE) == actor and time.monotonic() < deadline:
            time.sleep(0.02)


def _rejoin(recorder: str, rank: int) -> RunClient:
    return connect(recorder, rank=rank)


def _wait_at_end(waiting: deque[Any]) -> None:
    if waiting and _ray().is_initialized():
        _ray().wait(list(waiting), num_returns=len(waiting), timeout=EXIT_SECONDS)


def _ray() -> Any:
    with needs("logging from a Ray job", "ray"):
        import ray
    return ray
