"""All implementations of a step's statistics with one interface: inputs by name in, numbers by id out."""

from __future__ import annotations

import inspect
import os
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from compute import by_hand
from rlvitals import catalog
from rlvitals.compute import advantage, policy, rollout
from rlvitals.compute.packing import Packed
from rlvitals.compute.step import INPUTS, StepStatistics, _plan
from rlvitals.compute.step_channels import CHANNELS, FIELDS

Numbers = dict[str, float | None]

RENAMED = {rollout: {"rewards": "scores", "mask": "response_mask"}}
"""Inputs for which a family uses another name."""

NOT_MEASURED = {
    "names", "aggregation", "horizon", "ratio_level", "kl", "kl_clamp",  # settings; each has its own tests
    "response_lengths", "prompt_mask", "finish_reasons", "max_response_length",  # other forms of the same inputs
    "components", "component_weights", "pass_k", "tokens", "texts", "stage", "unbiased",  # not about tensors
}  # fmt: skip


def has_interpreter() -> bool:
    """Whether Triton's kernels can run without a device: TRITON_INTERPRET=1, and Triton installed."""
    return os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None


def numbers(values: Any) -> Numbers:
    """The numbers by the catalogue's ids; a step logs a few of them under its own names."""
    found = {}
    for name, value in values.items():
        matches = catalog.find(name, "rlvitals")
        assert matches, f"{name} is not in the catalogue"
        found[matches[0].metric.id] = value.number
    return found


def arguments_of(family: Any) -> set[str]:
    """The measured inputs and settings that a family takes."""
    return set(inspect.signature(family.pack).parameters) - NOT_MEASURED


def by_families(given: dict[str, np.ndarray], settings: by_hand.Settings) -> Numbers:
    """The numbers computed by `policy`, `advantage` and `rollout`."""
    found: Numbers = {}
    every = given | {name: bound for name, bound in vars(settings).items() if bound is not None}
    every.setdefault("mask", np.ones(given["logprobs"].shape))
    for family in (policy, advantage, rollout):
        renamed = RENAMED.get(family, {})
        taken = {renamed.get(name, name): value for name, value in every.items() if name != "scores" or not renamed}
        taken = {name: value for name, value in taken.items() if name in inspect.signature(family.pack).parameters}
        if family is advantage and "old_values" not in given:
            taken.pop("value_clip", None)  # it is refused without old values
        found |= numbers(family.stats(**taken))
    return found


def by_operations(given: dict[str, np.ndarray], settings: by_hand.Settings, **options: Any) -> Numbers:
    """The numbers computed by plain torch."""
    tensors = {name: torch.from_numpy(np.asarray(given[name])) for name in INPUTS if name in given}
    return numbers(_statistics(settings, use_kernels=False, **options)(**tensors).values())


def by_kernels(given: dict[str, np.ndarray], settings: by_hand.Settings) -> Numbers:
    """The numbers computed by Triton: on a CUDA device if there is one, otherwise in its interpreter."""
    tensors = {name: torch.from_numpy(np.asarray(given[name])) for name in INPUTS if name in given}
    if torch.cuda.is_available():
        made = _statistics(settings)
        on_device = {name: tensor.cuda() for name, tensor in tensors.items()}
        first = numbers(made(**on_device).values())
        # The second call bypasses Triton's own launcher.
        again = numbers(made(**on_device).values())
        assert repr(first) == repr(again)
        return first
    from rlvitals.compute.step_launch import Start

    made = _statistics(settings)
    inputs = tuple(map(tensors.get, INPUTS))
    advantages = tensors.get("advantages")
    start = Start(
        inputs,
        made._clipping,
        _plan(),
        advantage_per_row=advantages is not None and advantages.ndim == 1,
        clips_values="old_values" in tensors and settings.value_clip is not None,
    )
    found = torch.full((len(CHANNELS) * FIELDS,), torch.nan, dtype=torch.float64)
    start.start_by_triton(inputs, start.new_table(), found)
    return numbers(Packed(found.view(-1, FIELDS), made._prepare(inputs).entries).values())


def _statistics(settings: by_hand.Settings, **options: Any) -> StepStatistics:
    return StepStatistics(
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=settings.dual_clip,
        clip_value=settings.value_clip,
        **options,
    )
