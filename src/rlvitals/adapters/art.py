"""ART (openpipe-art): records the rows and trajectories of every `model.log` call in the model's own folder.

    from rlvitals.adapters import art

    art.install()                                # before the training loop; settings of rlvitals.start may follow

ART's backends and your loop log through `Model.log`, which writes `history.jsonl` and forwards to W&B. `install` wraps
this method and the one that writes rows, in memory only. Written against openpipe-art 0.5.18.

You write the training loop, so it can carry out requests: `rlvitals.Actions(art.run_of(model)).carry_out()` tells it
when to stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rlvitals.adapters.framework import follow, open_run, record, setting, warn_once
from rlvitals.capture.run import Run

_runs: dict[str, Run] = {}
"""Open runs by the folder of their model."""


def install(**settings: Any) -> None:
    """Record every model of this process. `settings`: as for `rlvitals.start`; set `output_dir` for one model only."""
    module: Any = import_module("art.model")
    steps: dict[str, int] = {}

    def rows(_: None, model: Any, metrics: Mapping[str, float], split: str, step: int) -> None:
        steps[model._get_output_dir()] = step
        run, named = _open(model, settings), _named(module, metrics, split)
        if split == "train":
            record(run, named, step)
        else:
            run.log_eval(named, step)  # also counters whose names do not contain the split

    def rollouts(_: None, model: Any, trajectories: Any = None, split: str = "val", **__: Any) -> None:
        if isinstance(trajectories, list | tuple):
            groups = [_group(group, split) for group in trajectories]
            _open(model, settings).log_groups(groups, steps.get(model._get_output_dir()))
        elif trajectories is not None:
            warn_once("trajectories from a generator are not recorded; give model.log a list")

    follow(module.Model, "_log_metrics", rows)
    follow(module.Model, "log", rollouts)


def run_of(model: Any) -> Run | None:
    """The run of a model; None until the model has logged."""
    return _runs.get(model._get_output_dir())


def finish() -> None:
    """Close every run. Runs that are still open are closed when the process ends."""
    while _runs:
        _runs.popitem()[1].finish()


def _open(model: Any, settings: Mapping[str, Any]) -> Run:
    folder = model._get_output_dir()
    if folder not in _runs:
        # ART itself resumes whenever its folder holds a checkpoint.
        defaults = {"output_dir": folder, "name": model.name, "resume": True, "algorithm": "grpo"}
        _runs[folder] = open_run("art", model.model_dump(exclude={"inference_api_key"}), defaults, settings)
    return _runs[folder]


def _named(module: Any, metrics: Mapping[str, float], split: str) -> dict[str, float]:
    """Name the metrics as ART's dashboards do: with the split as prefix, unless a name already has an ART section."""
    own = {*getattr(module, "METRIC_SECTIONS", ()), *getattr(module, "METRIC_SPLITS", ())}
    return {
        name if "/" in name and name.partition("/")[0] in own else f"{split}/{name}": value
        for name, value in metrics.items()
    }


def _group(group: Any, split: str) -> dict[str, Any]:
    """A TrajectoryGroup or one Trajectory as a group. Attempts that raised become rollouts with an error."""
    trajectories = getattr(group, "trajectories", [group])
    errors = [{"completion": "", "error": each.message} for each in getattr(group, "exceptions", ())]
    return {
        "rollouts": [*(_rollout(each) for each in trajectories), *errors],
        "meta": {"split": split, **(setting(group, "metadata") or {})},
    }


def _rollout(trajectory: Any) -> dict[str, Any]:
    numbers = dict(trajectory.metrics)
    return {
        "messages": [dict(message) for message in trajectory.messages()],
        "reward": trajectory.reward,
        "seconds": numbers.pop("duration", None),
        "trace": _trace(trajectory.messages_and_choices),
        "meta": {
            **trajectory.metadata,
            **numbers,
            **({"logs": trajectory.logs} if trajectory.logs else {}),
            **({"policy_version": version} if (version := trajectory.initial_policy_version) is not None else {}),
        },
    }


def _trace(parts: list[Any]) -> dict[str, list[Any]] | None:
    """The tokens of the model's own messages; None where the engine returned no log-probs."""
    choices = [part for part in parts if hasattr(part, "message")]
    tokens = [
        (turn, token)
        for turn, choice in enumerate(choices)
        for token in (choice.logprobs.content if choice.logprobs else None) or ()
    ]
    if not tokens:
        return None
    return {
        "texts": [token.token for _, token in tokens],
        "turns": [turn for turn, _ in tokens],
        "engine_logprobs": [token.logprob for _, token in tokens],
        "trained": [True] * len(tokens),
    }
