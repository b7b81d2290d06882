"""Every implementation computes the same number for an id, whatever other inputs it gets.

The families (`policy`, `advantage`, `rollout`), a step's statistics by plain torch and by Triton's kernels, and loops
in plain Python (`by_hand`) get the same inputs, in every combination that matters. The ids are not listed here: a new
id or input is compared automatically, and the test fails if the loops lack it.

The kernels need a CUDA device, or Triton and its interpreter:
`TRITON_INTERPRET=1 python -m pytest tests/compute/test_agreement.py -k kernels`, a few minutes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from compute import by_hand, step_data
from compute.by_hand import ALL, PER_TOKEN, Settings
from compute.step_data import every_input
from compute.step_implementations import arguments_of, by_families, by_kernels, by_operations, has_interpreter
from rlvitals.compute import advantage, policy, rollout
from rlvitals.compute.step import INPUTS, StepStatistics
from rlvitals.compute.step_plain import LOG_BOUND

needs_kernels = pytest.mark.skipif(
    not (torch.cuda.is_available() or has_interpreter()),
    reason="needs a CUDA device, or Triton and TRITON_INTERPRET=1",
)


def only(given: dict[str, np.ndarray], names) -> dict[str, np.ndarray]:
    return {name: array for name, array in given.items() if name in names}


def cases() -> dict[str, tuple[dict[str, np.ndarray], Settings]]:
    """Inputs of a step and settings, by name: all, each missing, each alone, each clip missing, and some at random."""
    found = {}
    every = only(every_input(), INPUTS)
    optional = [name for name in INPUTS if name != "logprobs"]
    found["all"] = every, ALL
    for name in optional:
        found[f"without {name}"] = only(every, set(INPUTS) - {name}), ALL
        found[f"{name} alone"] = only(every, {"logprobs", "mask", name}), ALL
    found["logprobs alone"] = only(every, {"logprobs"}), ALL
    for missing in itertools.product([True, False], repeat=2):
        dual, value = (None if gone else bound for gone, bound in zip(missing, (1.2, 0.2), strict=True))
        found[f"dual clip {dual}, value clip {value}"] = every, replace(ALL, dual_clip=dual, value_clip=value)
    draw = np.random.default_rng(1)
    for seed in range(20):
        some = {name for name in optional if draw.random() < 0.6} | {"logprobs"}
        found[f"random {seed}"] = only(every_input(seed), some), ALL
    rows, length = every["mask"].shape
    per_row = np.arange(rows, dtype=np.float32) / 4 - 0.8
    found["one advantage per sequence"] = every | {"advantages": per_row}, ALL
    found["no token counts"] = every | {"mask": np.zeros_like(every["mask"])}, ALL
    alone = np.zeros((rows, length), dtype=bool)
    alone[1, 1] = True
    found["one token counts"] = every | {"mask": alone}, ALL
    for name in INPUTS[:9]:
        broken = every[name].copy()
        broken[0, 1] = np.nan
        found[f"a NaN among {name}"] = every | {name: broken}, ALL
    for given, _ in found.values():
        if "mask" not in given:  # all tokens count, so none may be NaN
            given |= {name: np.nan_to_num(array) for name, array in given.items() if name in PER_TOKEN}
    return found


CASES = cases()
IN_INTERPRETER = ("all", "logprobs alone", "without old_values", "without values", "one advantage per sequence",
                  "dual clip None, value clip None", "a NaN among old_values", "no token counts")  # fmt: skip
"""Fewer cases, because the interpreter is slow: seconds instead of a device's microseconds."""


def assert_same(got, want, what, tolerance):
    """Every number of `got` is in `want` and is the same there."""
    unknown = got.keys() - want.keys()
    assert not unknown, f"{what}: nothing to compare {sorted(unknown)} with; write it down in by_hand.py"
    for name, number in got.items():
        right = want[name]
        assert (number is None) == (right is None), f"{what}: {name} is {number}, by hand {right}"
        if number is None or (math.isnan(number) and math.isnan(right)):
            continue
        assert step_data.error(number, name, {n: math.nan if x is None else x for n, x in want.items()}) < tolerance, (
            f"{what}: {name} is {number}, by hand {right}"
        )


@pytest.mark.parametrize("case", CASES)
def test_families_and_plain_torch_give_the_numbers_of_the_definitions(case):
    given, settings = CASES[case]
    settings = _possible(given, settings)
    want = by_hand.numbers(given, settings)
    families, plain = by_families(given, settings), by_operations(given, settings)
    assert_same(families, want, "families", 1e-9)
    assert_same(plain, want, "plain torch", 1e-9)
    assert plain.keys() & families.keys() >= {"policy.logp.mean", "train.samples.valid", "length.response.std"}


@needs_kernels
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy in the interpreter, for masked or missing values
@pytest.mark.parametrize("case", CASES if torch.cuda.is_available() else IN_INTERPRETER)
def test_the_kernels_give_the_numbers_of_the_definitions(case):
    given, settings = CASES[case]
    kernels, plain = by_kernels(given, settings), by_operations(given, settings)
    assert kernels.keys() == plain.keys()
    assert_same(kernels, by_hand.numbers(given, _possible(given, settings)), "kernels", 5e-6)


@pytest.mark.parametrize("seed", range(5))
def test_families_give_the_numbers_of_the_definitions_with_every_input_they_take(seed):
    given = every_input(seed)
    found = by_families(given, ALL)
    assert_same(found, by_hand.numbers(given, ALL), "families", 1e-9)
    taken = set().union(*map(arguments_of, (policy, advantage, rollout)))
    passed = given.keys() | {name for name, bound in vars(ALL).items() if bound is not None} | {"response_mask"}
    assert taken <= passed, f"nobody compares what these inputs add: {sorted(taken - passed)}"
    assert sum(number is not None for number in found.values()) > 110


def test_the_loops_know_no_number_that_nobody_computes():
    given = every_input()
    computed = by_families(given, ALL).keys() | by_operations(only(given, INPUTS), ALL).keys()
    assert by_hand.numbers(given, ALL).keys() == computed


def test_every_input_of_a_step_is_in_the_cases():
    taken = set(StepStatistics.__call__.__annotations__) - {"return", "self"}
    assert taken == set(INPUTS)
    assert set(INPUTS) <= every_input().keys()


@pytest.mark.parametrize("names", ["verl", "roll", "trl"])
def test_a_frameworks_names_mean_the_same_in_a_step_and_in_the_families(names):
    given = only(every_input(), INPUTS)
    step = StepStatistics(clip_low=0.2, clip_high=0.28, dual_clip=1.2, clip_value=0.2, names=names, use_kernels=False)
    tensors = {name: torch.from_numpy(array) for name, array in given.items()}
    plain = {name: value.number for name, value in step(**tensors).values().items()}
    per_token = {name: given[name] for name in INPUTS[:9]}
    families = {
        **policy.stats(
            **{name: x for name, x in per_token.items() if name not in ("returns", "values", "old_values")},
            mask=given["mask"], clip_low=0.2, clip_high=0.28, dual_clip=1.2, names=names,
        ),
        **advantage.stats(
            **{name: given[name] for name in ("advantages", "returns", "values", "old_values", "mask")},
            value_clip=0.2, names=names,
        ),
        **rollout.stats(
            response_mask=given["mask"], prompt_lengths=given["prompt_lengths"], scores=given["rewards"], names=names
        ),
    }  # fmt: skip
    shared = plain.keys() & families.keys()
    assert len(shared) > 50
    for name in shared:
        assert plain[name] == pytest.approx(families[name].number, rel=1e-6, abs=1e-9), name
    assert "critic/vf_explained_var" in shared or names != "verl"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("compute", [by_operations, pytest.param(by_kernels, marks=needs_kernels)])
def test_exponents_are_cut_off_and_log_ratios_are_not(compute):
    assert LOG_BOUND == 20.0  # as in verl and in docs/measure-gpu.md
    far = {
        "logprobs": np.array([[-1.0, -41.0, -1.0]], dtype=np.float32),
        "old_logprobs": np.array([[-31.0, -1.0, -20.5]], dtype=np.float32),
        "rollout_logprobs": np.array([[-1.0, -31.0, -1.0]], dtype=np.float32),
        "ref_logprobs": np.array([[-31.0, -1.0, -1.0]], dtype=np.float32),
    }
    found = compute(far, Settings())
    assert (found["policy.log_ratio.max"], found["policy.log_ratio.min"]) == (30.0, -40.0)
    assert found["policy.ratio.max"] == pytest.approx(math.exp(20.0), rel=1e-6)
    assert found["policy.ratio.min"] == pytest.approx(math.exp(-20.0), rel=1e-6)
    assert found["policy.ratio.mean"] == pytest.approx(
        (math.exp(20.0) + math.exp(-20.0) + math.exp(19.5)) / 3, rel=1e-6
    )
    assert found["policy.kl_old.k3.max"] == pytest.approx(math.exp(20.0) - 21.0, rel=1e-6)
    assert found["kl_ref.k3.max"] == pytest.approx(math.exp(20.0) - 21.0, rel=1e-6)
    assert found["mismatch.is_weight.max"] == pytest.approx(math.exp(20.0), rel=1e-6)
    assert found["mismatch.is_weight.min"] == pytest.approx(math.exp(-20.0), rel=1e-6)


def _possible(given, settings):
    """The settings without coefficients for missing inputs, which the families refuse."""
    return replace(
        settings,
        kl_coef=settings.kl_coef if "ref_logprobs" in given else None,
        entropy_coef=settings.entropy_coef if "entropy" in given else None,
    )
