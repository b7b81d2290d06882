"""Mixtures of experts: whether trainer and rollout engine choose the same experts, and how evenly they are used.

>>> seen = stats(train_experts=[[[0, 1]], [[2, 3]]], rollout_experts=[[[1, 0]], [[2, 1]]], experts=4)
>>> seen["moe.routing_mismatch"].number, seen["moe.expert_load.max"].number
(0.25, 0.25)
"""

from __future__ import annotations

import sys

import numpy as np

from rlvitals.compute.arrays import Array, gather, is_tensor, library, real
from rlvitals.compute.names import naming
from rlvitals.compute.packing import Packed, StatisticSheet, reading
from rlvitals.errors import ConfigError


def pack(
    *,
    train_experts: Array = None,
    rollout_experts: Array = None,
    experts: int | None = None,
    mask: Array = None,
    names: str = "canonical",
) -> Packed:
    """Compute the routing statistics of one batch; `stats` returns them as mergeable values.

    Both arrays hold the indices of the chosen experts, [..., layers, k], with the leading dimensions of `mask`. A
    negative index in `rollout_experts` means that the engine did not record the route. `experts` is the number of
    experts per layer. If it is given, the expert load is computed from `train_experts`, or from `rollout_experts` if
    the former is missing. Merging averages loads, so pass a whole step in one call.
    """
    train, rollout = (None if array is None else _whole(array) for array in (train_experts, rollout_experts))
    chosen = rollout if train is None else train
    if chosen is None:
        raise ConfigError("give train_experts, rollout_experts or both")
    if chosen.ndim < 3:
        raise ConfigError(f"experts must be [..., layers, k], not of shape {tuple(chosen.shape)}")
    kept = real(np.ones(tuple(chosen.shape[:-2])), chosen) if mask is None else real(gather(mask, chosen)[0] != 0)
    if tuple(kept.shape) != tuple(chosen.shape[:-2]):
        raise ConfigError(f"mask is of shape {tuple(kept.shape)} for experts of shape {tuple(chosen.shape)}")
    sheet = StatisticSheet(naming(names, "policy"))
    if rollout is not None:
        _show_replay(sheet, train, rollout, kept[..., None])
    if experts is not None:
        _show_load(sheet, _loads(chosen, kept, experts), experts)
    return sheet.pack()


stats = reading(pack)
"""The statistics as mergeable values; the arguments are those of `pack`."""


def _show_replay(sheet: StatisticSheet, train: Array, rollout: Array, kept: Array) -> None:
    recorded = real((rollout >= 0).all(-1))
    routes = kept + 0.0 * recorded
    sheet.moments(1.0 - recorded, routes, mean="moe.replay_fallback_fraction")
    if train is None:
        return
    if tuple(train.shape) != tuple(rollout.shape):
        raise ConfigError(f"experts are of shape {tuple(train.shape)} and {tuple(rollout.shape)}; they must be alike")
    shared = library(train).zeros_like(train) > 0
    for place in range(rollout.shape[-1]):
        shared = shared | (train == rollout[..., place : place + 1])
    apart = 1.0 - real(shared).mean(-1)
    sheet.moments(apart, routes * recorded, mean="moe.routing_mismatch")
    differs = real((apart * recorded > 0).any(-1))
    seen = kept[..., 0] * real((recorded > 0).any(-1))
    sheet.moments(differs, seen, mean="moe.routing_mismatch.token_fraction")


def _show_load(sheet: StatisticSheet, loads: Array, experts: int) -> None:
    """`loads` are [layers, experts], the number of choices."""
    xp = library(loads)
    total = loads.sum(-1)
    used = real(total > 0)
    share = loads / xp.where(total > 0, total, 1.0 + 0.0 * total)[..., None]
    most = xp.amax(share, -1)
    sheet.moments(most, used, mean="moe.expert_load.max")
    sheet.moments(most * experts - 1.0, used, mean="moe.max_violation")
    sheet.moments(xp.amin(share, -1), used, mean="moe.expert_load.min")
    sheet.moments(real(loads == 0).mean(-1), used, mean="moe.idle_fraction")


def _loads(chosen: Array, kept: Array, experts: int) -> Array:
    """How often each expert of each layer was chosen, [layers, experts]."""
    layers, k = chosen.shape[-2:]
    flat = chosen.reshape(-1, layers, k)
    is_chosen = real(flat >= 0) * kept.reshape(-1, 1, 1)
    if not is_tensor(chosen):
        places = np.arange(layers)[:, None] * experts + np.clip(flat, 0, experts - 1)
        counts = np.bincount(places.reshape(-1), is_chosen.reshape(-1), minlength=layers * experts)
        return counts.reshape(layers, experts)
    torch = sys.modules["torch"]
    places = torch.arange(layers, device=flat.device)[:, None] * experts + flat.clip(0, experts - 1)
    counts = is_chosen.new_zeros(layers * experts).index_add(0, places.reshape(-1), is_chosen.reshape(-1))
    return counts.reshape(layers, experts)


def _whole(array: Array) -> Array:
    """Keep integers: as floating point, the routes of a batch would take gigabytes."""
    return array.detach().long() if is_tensor(array) else np.asarray(array, dtype=np.int64)
