"""Ages of samples and tokens, compared with loops over single samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from loops import mean

from rlvitals.compute import merge, staleness
from rlvitals.errors import ConfigError


def numbers(**given):
    return {name.removeprefix("staleness."): value.number for name, value in staleness.stats(**given).items()}


def by_loop(train, started, ended):
    """Split an age as prime-rl does: the part during generation, and the rest."""
    known = [(b, e) for b, e in zip(started, ended, strict=True) if b is not None and e is not None]
    ages = [train - b for b, _ in known]
    flown = [min(train - b, e - b) for b, e in known]
    waited = [age - part for age, part in zip(ages, flown, strict=True)]
    return {
        "mean": mean(ages), "max": max(ages), "min": min(ages), "stale_fraction": mean([float(a > 0) for a in ages]),
        "in_flight.mean": mean(flown), "in_flight.max": max(flown), "in_queue.mean": mean(waited),
        "in_queue.max": max(waited), "version_span": mean([e - b + 1 for b, e in known]),
        "coverage": len(known) / len(started),
    }  # fmt: skip


def test_samples_started_and_ended_by_known_versions():
    started, ended = [10, 7, 9, None, 4, 10], [10, 9, 9, None, 6, 10]
    assert numbers(train_version=10, versions=started, end_versions=ended) == pytest.approx(by_loop(10, started, ended))


def test_a_sample_that_outlasted_the_batchs_version_gained_no_more_age_than_it_has():
    seen = numbers(train_version=5, versions=[3], end_versions=[9])
    assert (seen["in_flight.mean"], seen["in_queue.mean"]) == (2.0, 0.0)


def test_without_the_last_version_an_age_has_no_parts():
    seen = numbers(train_version=3, versions=[1, -1])
    assert seen == {"coverage": 0.5, "mean": 2.0, "max": 2.0, "min": 2.0, "stale_fraction": 1.0}


def test_ages_of_tokens_and_of_the_sequences_they_make():
    versions = np.array([[5, 5, 6, 99, 0], [2, 3, 4, 4, 0], [6, math.nan, 6, 6, 6], [1, 1, 1, 1, 1]], dtype=float)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    seen = numbers(train_version=6, versions=versions, mask=mask)
    ages = [1, 1, 0, 4, 3, 2, 2, 0, 0]  # without the token of unknown age and masked tokens
    assert seen.pop("token.mean") == pytest.approx(mean(ages))
    assert seen.pop("token.max") == 4
    # The third sequence has a token of unknown age; the fourth has no tokens.
    expected = by_loop(6, [5, 2, None], [6, 4, None])
    assert seen == pytest.approx(expected)


def test_micro_batches_merge_and_torch_agrees():
    torch = pytest.importorskip("torch")
    started, ended = np.array([4.0, 1.0, -1.0, 3.0]), np.array([5.0, 2.0, -1.0, 3.0])
    whole = staleness.stats(train_version=6, versions=started, end_versions=ended)
    parts = [
        staleness.stats(train_version=6, versions=torch.tensor(started[at]), end_versions=torch.tensor(ended[at]))
        for at in (slice(0, 1), slice(1, 4))
    ]
    merged = merge(parts)
    assert merged.keys() == whole.keys()
    assert {n: v.number for n, v in merged.items()} == pytest.approx({n: v.number for n, v in whole.items()})


def test_nothing_known_has_no_age():
    seen = numbers(train_version=1, versions=[None, None])
    assert (seen["coverage"], seen["mean"]) == (0.0, None)


def test_versions_of_a_strange_shape_are_refused():
    with pytest.raises(ConfigError, match=r"\[samples\] or \[sequences, tokens\]"):
        staleness.stats(train_version=1, versions=np.zeros((1, 1, 1)))
