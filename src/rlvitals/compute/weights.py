"""Whether a weight sync works: the share of weights that it changes, and the log-prob gap right after it.

>>> import numpy as np
>>> seen = stats(before={"w": np.zeros(4)}, after={"w": np.array([0.0, 0.5, 0.0, 0.0])})
>>> seen["sync.changed_fraction"].number
0.25
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlvitals.compute.arrays import Array, gather, is_tensor, library, real
from rlvitals.compute.names import naming
from rlvitals.compute.packing import Packed, StatisticSheet, reading
from rlvitals.compute.shapes import per_token, token_rows
from rlvitals.errors import ConfigError


def pack(
    *,
    before: Mapping[str, Array] | None = None,
    after: Mapping[str, Array] | None = None,
    logprobs: Array = None,
    rollout_logprobs: Array = None,
    ages: Array = None,
    mask: Array = None,
    names: str = "canonical",
) -> Packed:
    """Compute the statistics of one sync; `stats` returns them as mergeable values.

    `before` and `after` are the engine's weights by name, both in the engine's precision. Ranks that hold different
    parts can be merged. `ages` are the policy versions since a token was generated, for each token or each sequence.
    The gap of `logprobs` and `rollout_logprobs` is computed over the tokens of age 0.
    """
    sheet = StatisticSheet(naming(names, "policy"))
    if before is not None and after is not None:
        sizes, changed = _changes(before, after)
        sheet.moments(changed / sizes, sizes, mean="sync.changed_fraction")
    if ages is not None:
        if logprobs is None or rollout_logprobs is None:
            raise ConfigError("the gap right after a sync needs logprobs, rollout_logprobs and ages")
        train, rollout, kept = token_rows(logprobs, rollout_logprobs, mask=mask)
        is_fresh = real(per_token(ages, train) == 0)
        sheet.moments(library(train).abs(train - rollout), kept * is_fresh, mean="sync.gap.mean")
    return sheet.pack()


stats = reading(pack)
"""The statistics as mergeable values; the arguments are those of `pack`."""


def _changes(before: Mapping[str, Array], after: Mapping[str, Array]) -> tuple[Array, Array]:
    """The size of each tensor and how many of its numbers changed; empty tensors are ignored."""
    if different := before.keys() ^ after.keys():
        raise ConfigError(f"before and after must have the same tensors; only one has {sorted(different)[0]!r}")
    sizes, changed = [], []
    for name, new in after.items():
        size = int(np.prod(tuple(new.shape)))
        if tuple(new.shape) != tuple(before[name].shape):
            raise ConfigError(f"{name} had the shape {tuple(before[name].shape)} and now has {tuple(new.shape)}")
        if size:
            sizes.append(size)
            changed.append(_differing(before[name], new))
    counts = gather(*changed)
    return gather(sizes, *counts)[0], library(*counts).stack(counts) if counts else gather([])[0]


def _differing(old: Array, new: Array) -> Array:
    if is_tensor(new):
        old, new = old.detach().to(new.device), new.detach()
    # A number that is NaN before and after did not change, though it does not equal itself.
    return ((old != new) & ~((old != old) & (new != new))).sum()  # noqa: PLR0124
