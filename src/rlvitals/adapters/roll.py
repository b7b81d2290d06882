"""ROLL: a tracker with `log(values, step, **kwargs)` and `finish()`, registered by name in `tracker_registry`.

    from rlvitals.adapters import roll
    roll.register()                              # in the start script, before the pipeline is created

    track_with: rlvitals                         # in the YAML
    tracker_kwargs: {output_dir: out/rlvr}       # optional: the settings of rlvitals.start

Written against alibaba/ROLL at 8eb27cc2 (`roll/utils/tracking.py`, `roll/pipeline/rlvr/utils.py`), e25f5fa5 and
1bc12057. The pipeline creates its tracker in the driver, the only process that logs. It receives the metrics of all
workers already reduced. Rollouts come from `log_traces`, in versions that call it, and from the function that fills
the `rollout_dump_dir` of the RLVR pipelines. The pipelines call it at every step, even if that folder is not set.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rlvitals.adapters.framework import (
    algorithm_named,
    follow,
    open_run,
    record,
    safely,
    setting,
    whole_or_none,
)  # fmt: skip
from rlvitals.adapters.plain_values import plain
from rlvitals.capture.intake import MAX_DEPTH
from rlvitals.errors import BadValue
from rlvitals.splits import is_held_out
from rlvitals.store.layout import RunDir
from rlvitals.store.reader import read_rows

NAME = "rlvitals"

PATHS = {
    "num_generations": "num_return_sequences_in_group",
    "learning_rate": "actor_train.training_args.learning_rate",
    "max_completion_length": "actor_infer.generating_args.max_new_tokens",
    "max_turns": "max_actions_per_traj",
}

LATE = frozenset({"time/step_log", "time/step_total"})
"""Metrics that the agentic pipeline logs with a row, but adds after it has saved the row in a checkpoint."""


_DUMPS = ("roll.pipeline.rlvr.utils", "roll.pipeline.rlvr.rlvr_pipeline", "roll.pipeline.rlvr.rlvr_vlm_pipeline")
"""The module of `dump_rollout_to_specific_path`, and the modules that may have imported it already."""

_tracker: list[VitalsTracker] = []
"""The driver's tracker; at most one."""


def register() -> None:
    """Register `track_with: rlvitals` with ROLL. A second call changes nothing."""
    tracking: Any = import_module("roll.utils.tracking")
    # ROLL's base class has empty defaults for methods that later versions may call.
    tracking.tracker_registry[NAME] = type("VitalsTracker", (VitalsTracker, tracking.BaseTracker), {})
    with safely("ROLL's rollouts are not recorded"):
        import_module(_DUMPS[0])
        for name in _DUMPS:
            if (module := sys.modules.get(name)) is not None:
                follow(module, "dump_rollout_to_specific_path", _take_batch)


def _take_batch(_: None, path: str, global_step: int, data: Any, tokenizer: Any) -> None:
    if _tracker:
        _tracker[-1].log_batch(global_step, data, tokenizer)


class VitalsTracker:
    """Records one run of ROLL's pipeline. Pass `run` to `rlvitals.Actions` to carry out requests."""

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        name = str(setting(config, "exp_name") or "roll")
        defaults = {
            "output_dir": os.path.join(str(setting(config, "output_dir") or "output"), name),
            "algorithm": algorithm_named(setting(config, "adv_estimator")),
            "total_steps": whole_or_none(setting(config, "max_steps")),
            "resume": True if setting(config, "resume_from_checkpoint") else None,
        }
        self.run = open_run("roll", config, defaults, settings, paths=PATHS)
        self._on_record = _rows_on_record(self.run.dir) if self.run.attempt > 1 else frozenset()
        _tracker[:] = [self]

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Record one step. The reducer is removed from names (`actor/pg_loss@sum`), as in ROLL's own trackers."""
        with safely("a row of ROLL could not be read", but=(BadValue,)):
            named = _without_reducers(values)
            if not self._on_record or (step, _fingerprint(plain(named))) not in self._on_record:
                record(self.run, named, step)
            # A resumed pipeline first sends the whole history of its checkpoint again.

    def log_traces(self, name: str, records: list[dict[str, Any]], step: int | None = None) -> None:
        """Record transcripts, with their messages and metadata, as rollouts."""
        with safely("rollouts of ROLL could not be read", but=(BadValue,)):
            rollouts = [(_trace_prompt(each), _traced(each)) for each in records]
            self.run.log_groups(_grouped(rollouts, {"source": name}), step)

    def log_batch(self, step: int, data: Any, tokenizer: Any) -> None:
        """Record a batch of the RLVR pipelines as rollouts."""
        columns = {name: list(values) for name, values in data.non_tensor_batch.items()}
        answers = tokenizer.batch_decode(data.batch["responses"], skip_special_tokens=True)
        scores = data.batch["scores"].tolist()
        prompts = columns.get("prompt") or tokenizer.batch_decode(data.batch["prompts"], skip_special_tokens=True)
        references = columns.get("ground_truth") or [""] * len(answers)
        rollouts = [
            (
                (str(prompt), str(reference)),
                {
                    "completion": answer,
                    "reward": score,
                    "meta": {
                        key: str(columns[key][index]) for key in ("tag", "domain", "difficulty") if key in columns
                    },
                },
            )
            for index, (prompt, answer, score, reference) in enumerate(
                zip(prompts, answers, scores, references, strict=True)
            )
        ]
        self.run.log_groups(_grouped(rollouts, {}), step)

    def finish(self) -> None:
        self.run.finish()


def _grouped(rollouts: list[tuple[tuple[str, str], dict[str, Any]]], meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Group rollouts by prompt, in the order of the prompts."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for key, rollout in rollouts:
        groups.setdefault(key, []).append(rollout)
    return [
        {"prompt": prompt, "answer": answer, "rollouts": members, "meta": dict(meta)}
        for (prompt, answer), members in groups.items()
    ]


def _trace_prompt(trace: Mapping[str, Any]) -> tuple[str, str]:
    """The prompt: all messages before the model's first one."""
    asked = []
    for message in trace["messages"]:
        if message.get("role") == "assistant":
            break
        asked.append(str(message.get("content")))
    return "\n".join(asked), ""


def _traced(trace: Mapping[str, Any]) -> dict[str, Any]:
    metadata = dict(trace.get("metadata") or {})
    reward = next((metadata.pop(key) for key in ("reward", "score", "episode_score") if key in metadata), None)
    return {"messages": trace["messages"], "reward": reward, "meta": metadata}


def _without_reducers(values: Any, depth: int = 0) -> Any:
    if not isinstance(values, Mapping) or depth > MAX_DEPTH:
        return values
    return {
        str(name).rpartition("@")[0] or str(name): _without_reducers(value, depth + 1) for name, value in values.items()
    }


def _rows_on_record(folder: str) -> frozenset[tuple[int, int]]:
    return frozenset((row.step, _fingerprint(row.numbers)) for row in read_rows(RunDir(Path(folder)).train_log))


def _fingerprint(numbers: Mapping[str, Any]) -> int:
    """A hash of a row's numbers, to recognise a row that is sent again. Retrained steps differ at least in timings."""
    return hash(
        frozenset(
            (name, float(value))
            for name, value in numbers.items()
            if isinstance(value, int | float) and math.isfinite(value) and name not in LATE and not is_held_out(name)
        )
    )
