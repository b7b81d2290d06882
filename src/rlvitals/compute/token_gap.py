"""Where the log-probs of engine and trainer differ on recorded tokens: by position, turn, length, age and log-prob.

A difference in temperature multiplies log-probs, so the gap is proportional to the log-prob. A difference in context or
tokenization makes a few tokens nearly impossible, mostly where texts are joined. Stale samples show the gap on tokens
of old versions; a failed sync shows it on all tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rlvitals.compute.arrays import Array
from rlvitals.records import Group, TokenGap, TokenTrace

MOST_TOKENS = 200_000
"""Tokens of a step that are used."""

LEAST_TOKENS = 200
"""Tokens needed for a result."""

WORST_SHARE = 0.01
FAR_OUT = 2.0
"""In nats: one side gives the token more than seven times the probability of the other."""

LEAST_ROLLOUTS = 8


def token_gap(groups: Iterable[Group]) -> TokenGap | None:
    """The gap on a step's recorded tokens; None if too few have the log-probs of both sides."""
    step, traces, left = 0, list[TokenTrace](), MOST_TOKENS
    for group in groups:
        step = group.step
        for rollout in group.rollouts:
            trace = rollout.trace
            if trace is None or not trace.engine_logprobs or not (trace.logprobs or trace.new_logprobs):
                continue
            left -= len(trace.engine_logprobs)
            if left >= 0:
                traces.append(trace)
    parts = [_columns(trace, step) for trace in traces]
    if sum(len(part[0]) for part in parts) < LEAST_TOKENS:
        return None
    train, engine, edge, place, age = (np.concatenate(column) for column in zip(*parts, strict=True))
    finite = np.isfinite(train) & np.isfinite(engine)
    train, engine, edge, place, age = (column[finite] for column in (train, engine, edge, place, age))
    if len(train) < LEAST_TOKENS:
        return None
    apart = train - engine
    size = np.abs(apart)
    worst = np.sort(size)[-max(1, int(WORST_SHARE * len(size))) :]
    scaling = _correlation(apart, engine)
    far = size > FAR_OUT
    has_turns = bool((edge >= 0).all())
    means = np.array([np.abs(part[0] - part[1]).mean() for part in parts if len(part[0])])
    lengths = np.array([len(part[0]) for part in parts if len(part[0])], dtype=float)
    known = age >= 0
    return TokenGap(
        tokens=len(size),
        mean=float(size.mean()),
        worst=float(size.max()),
        k1=float(-apart.mean()),
        k3=float((np.expm1(apart) - apart).mean()),
        scaling=scaling,
        slope=None if scaling is None else float(scaling * apart.std() / engine.std()),
        in_few=float(worst.sum() / size.sum()) if size.sum() > 0 else 0.0,
        at_edges=float(edge[far].mean()) if has_turns and far.any() else None,
        later=_ratio(size[place > 2 / 3], size[place <= 1 / 3]),
        by_length=_correlation(means, lengths) if len(means) >= LEAST_ROLLOUTS else None,
        fresh=_ratio(size[known & (age == 0)], size[known & (age > 0)]),
        age=float(age[known].mean()) if known.any() else None,
    )


def _columns(trace: TokenTrace, step: int) -> tuple[Array, Array, Array, Array, Array]:
    """For the tokens that are trained on: both log-probs, whether a turn begins or ends there (-1: not known), the
    position in the rollout from 0 to 1, and the age (-1: not known).
    """
    count = len(trace.engine_logprobs)
    train = np.array(trace.logprobs or trace.new_logprobs, dtype=float)
    turns = np.array(trace.turns, dtype=float)
    edge = np.full(count, -1.0)
    if len(turns) == count:
        changes = np.flatnonzero(np.diff(turns)) + 1
        edge = np.zeros(count)
        edge[[0, count - 1, *changes, *(changes - 1)]] = 1.0
    age = np.full(count, -1.0)
    if len(trace.versions) == count:
        age = step - np.array(trace.versions, dtype=float)
    kept = np.array(trace.trained, dtype=bool) if len(trace.trained) == count else np.ones(count, bool)
    place = np.arange(count) / max(count - 1, 1)
    return train[kept], np.array(trace.engine_logprobs, dtype=float)[kept], edge[kept], place[kept], age[kept]


def _correlation(x: Array, y: Array) -> float | None:
    if x.std() == 0 or y.std() == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _ratio(above: Array, below: Array) -> float | None:
    return float(above.mean() / below.mean()) if len(above) and len(below) and below.mean() > 0 else None
