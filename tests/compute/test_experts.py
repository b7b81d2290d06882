"""Routing compared with sets of experts, one token and layer at a time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from loops import mean

from rlvitals.compute import experts, merge
from rlvitals.errors import ConfigError

EXPERTS, LAYERS, K = 6, 3, 2


@pytest.fixture(params=range(3), ids="seed{}".format)
def routes(request):
    """Routes of [2, 7] tokens; the engine agrees often, in another order, and some of its routes are missing."""
    draw = np.random.default_rng(request.param)
    train = np.array([[[draw.permutation(EXPERTS)[:K] for _ in range(LAYERS)] for _ in range(7)] for _ in range(2)])
    engine = np.where(draw.random((2, 7, LAYERS, 1)) < 0.6, train[..., ::-1], (train + 1) % EXPERTS)
    engine[draw.random((2, 7, LAYERS)) < 0.2] = -1
    return train, engine, (draw.random((2, 7)) < 0.8).astype(int)


def by_loop(train, engine, mask):
    apart, missing, tokens, loads = [], [], [], [Counter() for _ in range(LAYERS)]
    for row, token in zip(*np.nonzero(mask), strict=True):
        differs = []
        for layer in range(LAYERS):
            own, other = set(train[row, token, layer]), set(engine[row, token, layer])
            loads[layer].update(own)
            missing.append(float(-1 in other))
            if -1 not in other:
                apart.append(len(own - other) / K)
                differs.append(own != other)
        if differs:
            tokens.append(float(any(differs)))
    shares = [[load[e] / sum(load.values()) for e in range(EXPERTS)] for load in loads]
    return {
        "moe.replay_fallback_fraction": mean(missing),
        "moe.routing_mismatch": mean(apart),
        "moe.routing_mismatch.token_fraction": mean(tokens),
        "moe.expert_load.max": mean([max(share) for share in shares]),
        "moe.expert_load.min": mean([min(share) for share in shares]),
        "moe.max_violation": mean([max(share) * EXPERTS - 1 for share in shares]),
        "moe.idle_fraction": mean([share.count(0.0) / EXPERTS for share in shares]),
    }


def numbers(found):
    return {name: value.number for name, value in found.items()}


def test_routes_are_compared_as_sets_and_loads_counted_by_layer(routes):
    train, engine, mask = routes
    given = {"train_experts": train, "rollout_experts": engine, "mask": mask}
    found = numbers(experts.stats(**given, experts=EXPERTS))
    assert found == pytest.approx(by_loop(train, engine, mask))
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(array.copy()) for name, array in given.items()}
    assert numbers(experts.stats(**tensors, experts=EXPERTS)) == pytest.approx(found)


def test_replay_that_works_has_no_mismatch_and_routing_of_parts_merges(routes):
    train, engine, mask = routes
    replayed = experts.stats(train_experts=train, rollout_experts=train[..., ::-1])
    assert numbers(replayed) == {
        "moe.replay_fallback_fraction": 0.0, "moe.routing_mismatch": 0.0, "moe.routing_mismatch.token_fraction": 0.0,
    }  # fmt: skip
    whole = experts.stats(train_experts=train, rollout_experts=engine, mask=mask)
    parts = [experts.stats(train_experts=train[i], rollout_experts=engine[i], mask=mask[i]) for i in range(2)]
    assert numbers(merge(parts)) == pytest.approx(numbers(whole))


def test_a_router_that_collapsed_and_one_that_is_even():
    same = experts.stats(train_experts=np.tile([0, 1], (8, LAYERS, 1)), experts=EXPERTS)
    assert numbers(same)["moe.max_violation"] == EXPERTS / K - 1
    assert numbers(same)["moe.idle_fraction"] == pytest.approx(4 / 6)
    even = np.arange(6).reshape(3, 1, 2)
    assert numbers(experts.stats(rollout_experts=even, experts=6))["moe.max_violation"] == pytest.approx(0.0)


def test_where_no_token_counts_nothing_is_defined(routes):
    train, engine, mask = routes
    found = experts.stats(train_experts=train, rollout_experts=engine, mask=0 * mask, experts=EXPERTS)
    assert set(numbers(found).values()) == {None}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give train_experts"),
        ({"train_experts": [[0, 1]]}, r"\[\.\.\., layers, k\]"),
        ({"train_experts": np.zeros((4, 2, 2)), "mask": [1, 1]}, "mask is of shape"),
        ({"train_experts": np.zeros((4, 2, 2)), "rollout_experts": np.zeros((4, 2, 1))}, "must be alike"),
    ],
)
def test_what_does_not_fit_is_reported(given, message):
    with pytest.raises(ConfigError, match=message):
        experts.stats(**given)
