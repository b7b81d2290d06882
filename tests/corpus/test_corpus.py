"""The corpus tests the rules, so its labels must be true, its numbers realistic and its runs reproducible."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from corpus import failing_runs, healthy_runs
from corpus.catalogue import FAILING
from corpus.healthy import VARIANTS as HEALTHY
from corpus.latent import World, curves_of, observe
from corpus.names import KEYS, family
from corpus.noise import generator, logit, spikes

pytestmark = pytest.mark.slow

KINDS = frozenset(
    [
        "nonfinite",
        "dead_gradient",
        "grad_explosion",
        "loss_divergence",
        "instability",
        "lr_too_low",
        "lr_too_high",
        "kl_explosion",
        "kl_negative",
        "entropy_collapse",
        "entropy_explosion",
        "reward_collapse",
        "reward_floor",
        "not_learning",
        "plateau",
        "zero_variance",
        "reward_hacking",
        "reward_composition",
        "length_explosion",
        "length_collapse",
        "truncation",
        "clip_saturation",
        "ratio_off",
        "logprob_mismatch",
        "staleness",
        "value_failure",
        "margin_inversion",
        "preference_signal_lost",
        "likelihood_displacement",
        "logprob_crash",
        "saturated",
        "overfit",
        "class_imbalance",
        "tool_abandonment",
        "turn_runaway",
        "tool_errors",
        "agent_loop",
        "early_exit",
        "groups_filtered",
        "stall",
        "throughput",
        "memory",
        "gpu_idle",
        "data",
    ]
)


@functools.cache
def failed():
    """Built by the process that runs the tests, not by every process that collects them."""
    return failing_runs(1)


@functools.cache
def fine():
    return healthy_runs(1)


@pytest.fixture
def run(request):
    return (failed() + fine())[request.param]


def over(variants):
    names = [variant.name for variant in variants]
    return pytest.mark.parametrize("run", range(len(names)), ids=names, indirect=True)


every_failing = over(FAILING)
every_run = over((*FAILING, *HEALTHY))


def column(run, key):
    """The rows that have a number under this key, and the numbers."""
    where = [i for i, row in enumerate(run.rows) if isinstance(row.get(key), int | float)]
    return np.array(where), np.array([run.rows[i][key] for i in where], float)


def distance(a, b):
    """The Kolmogorov-Smirnov distance of two samples."""
    grid = np.sort(np.concatenate([a, b]))
    return np.abs(
        np.searchsorted(np.sort(a), grid, "right") / len(a) - np.searchsorted(np.sort(b), grid, "right") / len(b)
    ).max()


def gain(values):
    """The difference between the last and the first third, in standard errors."""
    first, last = np.array_split(values, 3)[0], np.array_split(values, 3)[-1]
    error = math.sqrt(first.var() / len(first) + last.var() / len(last)) + 1e-12
    return (last.mean() - first.mean()) / error


def test_every_kind_fails_in_at_least_two_ways():
    variants = {kind: {run.name for run in failed() if run.kind == kind} for kind in KINDS}
    assert len(KINDS) == 44
    assert {kind for kind, names in variants.items() if len(names) < 2} == set()
    assert {run.kind for run in failed()} == KINDS


def test_kinds_that_can_be_are_shown_in_more_than_one_trainer():
    frameworks = {kind: {(run.framework, run.algorithm) for run in failed() if run.kind == kind} for kind in KINDS}
    assert {kind for kind, seen in frameworks.items() if len(seen) < 2} <= {"early_exit"}


def test_there_are_many_healthy_runs_and_none_has_a_label():
    assert len(fine()) >= 30
    assert all(run.kind is None and run.onset is None and not run.accept for run in fine())


def test_names_are_unique():
    names = [run.name for run in failed() + fine()]
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    again, other = failing_runs(1), failing_runs(2)
    for first, second, third in zip(failed(), again, other, strict=True):
        assert repr(first) == repr(second)  # NaN is not equal to itself
        assert repr(first.rows) != repr(third.rows)
    assert [repr(run) for run in healthy_runs(1)] == [repr(run) for run in fine()]


@every_run
def test_rows_are_flat_numbers_under_the_framework_s_names(run):
    known = {*KEYS[family(run.framework, run.algorithm)].values(), "step", "timestamp"}
    assert 30 <= len(run.rows) <= 1200
    for row in run.rows:
        assert isinstance(row["step"], int)
        assert set(row) <= known
        assert all(value is None or type(value) in (int, float) for value in row.values())
    logged = {key for row in run.rows for key in row}
    assert len(logged) >= 4


@every_run
def test_only_runs_about_numbers_have_values_that_are_not_finite(run):
    bad = [value for row in run.rows for value in row.values() if isinstance(value, float) and not math.isfinite(value)]
    assert bool(bad) == (run.kind == "nonfinite")


SHARES = ("frac_reward_zero_std", "completions/clipped_ratio", "response_length/clip_ratio", "rewards/accuracies",
          "clip_ratio/region_mean", "actor/pg_clipfrac", "rollout/truncated_ratio")  # fmt: skip


@every_run
def test_shares_are_shares_unless_the_data_are_what_is_broken(run):
    if run.kind == "data":
        return
    for key in SHARES:
        _, values = column(run, key)
        assert not len(values) or (values.min() >= 0 and values.max() <= 1)


@every_failing
def test_a_failing_run_says_when_and_by_which_names(run):
    assert 0 <= run.onset < len(run.rows)
    assert run.kind in run.accept or run.name.endswith("-noeval")
    assert run.accept <= KINDS


# Checks for runs that fail from their first rows: there are no earlier rows to compare with.
FROM_START = {
    "nonfinite": lambda values: np.isnan(values).all(),
    "dead_gradient": lambda values: (values == 0).all(),
    "lr_too_low": lambda values: values.max() < 1e-7,
    "reward_floor": lambda values: np.ptp(values) == 0,
    "not_learning": lambda values: abs(gain(values)) < 3.5,
    "zero_variance": lambda values: values.mean() > 0.85,
    "truncation": lambda values: values.mean() > 0.85,
    "preference_signal_lost": lambda values: abs(values.mean()) < 0.02,
    "margin_inversion": lambda values: np.median(values[len(values) // 2 :]) < -0.3,
    "gpu_idle": lambda values: np.median(values) < 40,
}  # fmt: skip
# Checks for trends that turned.
TURNS = {
    "plateau": lambda before, after: gain(before) > 4 and abs(gain(after)) < 3.5,
    "overfit": lambda before, after: after[-1] > 1.1 * min(before.min(), after.min()),
    "reward_hacking": lambda before, after: gain(after) < -1 or gain(after) > 4,
}
EARLY = 8
"""A failure that starts before this row has too few rows before it: the first rows are compared instead."""


@every_failing
def test_the_marker_shows_the_failure_at_the_onset(run):
    where, values = column(run, run.marker)
    if run.kind == "class_imbalance":
        weights = run.config["desirable_weight"], run.config["undesirable_weight"]
        counts = run.config.get("num_desirable"), run.config.get("num_undesirable")
        if counts[0] is None:
            counts = (column(run, "count/chosen")[1].sum(), column(run, "count/rejected")[1].sum())
        assert not 0.75 <= weights[0] * counts[0] / (weights[1] * counts[1]) <= 4 / 3
    elif run.kind == "stall":
        assert run.ticks[-1] - run.rows[-1]["timestamp"] >= 600
        assert run.ticks == sorted(run.ticks)
        assert run.onset == len(run.rows) - 1
    elif run.marker == "step":
        steps = np.diff([row["step"] for row in run.rows])
        assert (steps[: run.onset - 1] > 0).all()
        assert (steps[run.onset :] <= 0).mean() > 0.3
    elif run.onset == 0:
        assert FROM_START[run.kind](values)
    else:
        before, after = values[where < run.onset], values[where >= run.onset]
        if run.kind == "nonfinite":
            assert np.isfinite(before).all()
            assert not np.isfinite(after).any()
        elif "vanished" in run.name:
            assert len(before) > 20
            assert not len(after)
        elif run.kind in TURNS:
            assert TURNS[run.kind](before, after)
        else:
            if run.onset < EARLY:
                before = values[: run.onset + 1]
            late = after[len(after) // 3 :]  # failures take time to develop
            jumps = distance(np.abs(np.diff(before)), np.abs(np.diff(late))) if len(before) > 8 else 0
            assert max(distance(before, late), jumps) > 0.45


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_labels_hold_for_other_seeds(seed):
    for run in failing_runs(seed):
        test_the_marker_shows_the_failure_at_the_onset(run)


FLAT_ON_PURPOSE = ("agent-flat-short", "small-gain", "bare", "short", "two-runs-in-one-file")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_healthy_policies_gain_reward_and_healthy_preferences_gain_margin(seed):
    for variant, run in zip(HEALTHY, healthy_runs(seed), strict=True):
        if variant.tag in FLAT_ON_PURPOSE:
            continue
        keys = KEYS[family(run.framework, run.algorithm)]
        key = keys.get("margin") or keys.get("reward") or keys["chosen"]
        _, values = column(run, key)
        assert gain(values) > 2, run.name


@pytest.mark.parametrize(("chance", "group"), [(0.18, 2), (0.5, 4), (0.3, 8), (0.9, 8), (0.05, 16)])
def test_dead_groups_are_as_many_as_chance_gives(chance, group):
    world = World(points=200, prompts=50, group=group, start=chance, end=chance, spread=0.0, max_length=1e9)
    rng = generator(7, "dead groups")
    curves = curves_of(world, rng)
    curves.skill[:] = logit(chance)
    dead = observe(world, curves, rng)["zero_std"].mean()
    expected = chance**group + (1 - chance) ** group
    # Some batches are a little harder than others, so the share is not exactly that of the formula.
    assert dead == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 10_000) + 0.01)


def test_reward_is_quantised_by_the_batch():
    world = World(points=60, prompts=4, group=8)
    rng = generator(7, "quanta")
    reward = observe(world, curves_of(world, rng), rng)["reward"]
    assert np.allclose(reward * 32, np.round(reward * 32))


def test_a_truncated_answer_earns_nothing():
    world = World(points=60, start=0.9, end=0.95)
    rng = generator(7, "cut")
    curves = curves_of(world, rng)
    curves.endless[:] = 1.0
    assert observe(world, curves, rng)["reward"].max() == 0.0


def test_spikes_are_single_rows():
    factors = spikes(generator(7, "spikes"), 5000, 0.05, 10, 100)
    high = factors > 1
    assert 50 < high.sum() < 400
    assert not (high[1:] & high[:-1]).any()


def test_accepted_kinds_of_all_variants_exist():
    assert {kind for variant in FAILING for kind in variant.accept} <= KINDS


def test_the_noise_of_rows_has_little_memory_and_heavy_tails_as_in_real_logs():
    tails, memories = [], []
    for run in fine():
        keys = KEYS[family(run.framework, run.algorithm)]
        for name in ("kl", "grad", "entropy"):
            _, values = column(run, keys.get(name, ""))
            if len(values) < 80 or (values <= 0).any():
                continue
            logs = np.log(values[10:])
            x = np.arange(len(logs)) / len(logs)
            rest = logs - np.polyval(np.polyfit(x, logs, 4), x)
            tails.append(((rest - rest.mean()) ** 4).mean() / rest.var() ** 2)
            memories.append(np.corrcoef(rest[1:], rest[:-1])[0, 1])
    assert 3.2 < np.median(tails) < 12
    assert abs(np.median(memories)) < 0.3
