"""ms-swift: registers `VitalsCallback` for every trainer of `swift pt`, `swift sft` and `swift rlhf`.

    # vitals.py
    from rlvitals.adapters import ms_swift

    ms_swift.register()

    swift rlhf --rlhf_type grpo ... --external_plugins vitals.py --callbacks rlvitals

Written against ms-swift 4.6.0. Its trainers are those of transformers and TRL, so the callback works in the same way.
The trainers of `megatron` have another table and other callbacks and are not supported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rlvitals.adapters.framework import groups_by_prompt, listed
from rlvitals.adapters.transformers import VitalsCallback
from rlvitals.adapters.transformers_settings import event_of
from rlvitals.guard import guarded, words_of
from rlvitals.records import Group, Rollout, Turn

NAME = "rlvitals"


def register(output_dir: str | os.PathLike[str] | None = None, **settings: Any) -> None:
    """Make `--callbacks rlvitals` add a `VitalsCallback` with these settings."""
    VitalsCallback(output_dir, **settings)  # raises on wrong settings

    def made(args: Any, trainer: Any) -> SwiftCallback:
        return SwiftCallback(trainer, output_dir, **settings)

    import_module("swift.callbacks").callbacks_map[NAME] = made


class SwiftCallback(VitalsCallback):
    """The callback that ms-swift creates; it also records the completions that the GRPO trainer scored last."""

    def __init__(self, trainer: Any, output_dir: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        self._records_completions = bool(settings.pop("rollouts", True))
        # The hooks for TRL do not fit: this trainer has other methods.
        super().__init__(output_dir, **{"framework": "ms_swift", **settings, "rollouts": False})
        self._trainer = trainer
        self._recorded: list[str] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> Any:
        """Record the row, and the completions that were scored since the previous row."""
        result = super().on_log(args, state, control, logs=logs, **rest)
        if self._records_completions and self.run is not None and event_of(dict(logs or {})) == "train":
            with guarded(lambda error: self.warn_once(f"completions could not be recorded: {words_of(error)}")):
                self._record_completions(int(state.global_step))
        return result

    def _record_completions(self, step: int) -> None:
        kept = getattr(self._trainer, "_logs", None) or {}
        completions = [str(text) for text in kept.get("completion", ())]
        if self.run is None or not completions or completions == self._recorded:
            return
        self._recorded = completions
        self.run.log_groups(groups_of(kept, getattr(self._trainer, "reward_weights", None)), step)


def groups_of(kept: Mapping[str, Any], weights: Any = None) -> list[Group]:
    """The completions in a GRPO trainer's `_logs`, as groups.

    >>> kept = {"prompt": ["a", "a"], "completion": ["x", "y"], "rewards": {"exact": [1.0, 0.0]}, "advantages": [1, -1]}
    >>> [(group.prompt, [(each.reward, each.advantage) for each in group.rollouts]) for group in groups_of(kept)]
    [('a', [(1.0, 1), (0.0, -1)])]
    """
    parts = {str(name): list(values) for name, values in (kept.get("rewards") or {}).items()}
    weight = dict(zip(parts, listed(weights), strict=False))
    advantages = listed(kept.get("advantages"))
    made = []
    for number, (prompt, completion) in enumerate(zip(kept["prompt"], kept["completion"], strict=True)):
        scores = {name: values[number] for name, values in parts.items() if values[number] == values[number]}
        rollout = Rollout(
            turns=(Turn(text=str(completion)),),
            reward=sum(score * weight.get(name, 1.0) for name, score in scores.items()) if scores else None,
            reward_parts=scores,
            advantage=advantages[number] if number < len(advantages) else None,
        )
        made.append((str(prompt), rollout))
    return groups_by_prompt(made)
