"""A step's statistics: compared with numpy in float64, without reading a scalar, and merged over micro-batches."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from compute.step_data import error, make_step, reference
from rlvitals.compute.step import StepStatistics

READS = re.compile(
    r"_local_scalar_dense|\bitem\b|nonzero|masked_select|is_nonzero|equal\.default|_unique|aten\.index\."
)


class NoScalarRead(TorchDispatchMode):
    """Refuses every operation that makes the host wait for a device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if READS.search(str(function)):
            raise AssertionError(f"{function} reads a number on the host")
        return function(*args, **(kwargs or {}))


def as_torch(data, dtype=None):
    tensors = {name: torch.from_numpy(array) for name, array in data.items()}
    return {name: t.to(dtype) if dtype and t.is_floating_point() else t for name, t in tensors.items()}


def numbers(values):
    return {name: value.number for name, value in values.items()}


def statistics():
    return StepStatistics(clip_low=0.2, clip_high=0.28, dual_clip=1.2)


@pytest.mark.parametrize(("rows", "length"), [(12, 150), (3, 1), (2, 7)])
def test_the_numbers_are_those_of_float64(rows, length):
    data = make_step(rows, length, seed=rows)
    got, want = numbers(statistics()(**as_torch(data)).values()), reference(data)
    assert len(got) >= 70
    for name in got:
        if got[name] is None:  # the deviation of a single number
            assert math.isnan(want[name])
        else:
            assert error(got[name], name, want) < 5e-6, name


def test_nothing_is_read_on_the_host_while_queueing():
    tensors = as_torch(make_step())
    with NoScalarRead():
        arrival = statistics()(**tensors)
    assert arrival.ready()
    assert arrival.values()


def test_the_guard_against_reads_catches_one():
    with NoScalarRead(), pytest.raises(AssertionError, match="reads a number"):
        torch.ones(3).sum().item()
    with NoScalarRead(), pytest.raises(AssertionError, match="reads a number"):
        torch.ones(3)[torch.tensor([True, False, True])]


def test_micro_batches_merge_to_the_whole():
    data = make_step(rows=15)
    parts = [{name: array[some] for name, array in data.items()} for some in (slice(0, 4), slice(4, 5), slice(5, 15))]
    first, second, third = (statistics()(**as_torch(part)).values() for part in parts)
    merged = numbers({name: first[name] + second[name] + third[name] for name in first})
    whole = numbers(statistics()(**as_torch(data)).values())
    assert merged.keys() == whole.keys()
    for name in whole:
        assert error(merged[name], name, whole) < 1e-9, name


def test_an_empty_mask_leaves_the_token_numbers_undefined():
    data = make_step()
    data["mask"] = np.zeros_like(data["mask"])
    got = numbers(statistics()(**as_torch(data)).values())
    assert got["length.response.mean"] == 0.0
    assert got["train.samples.valid"] == 0.0
    assert got["reward.total.mean"] == pytest.approx(data["rewards"].mean())
    tokens = ("policy.", "kl_ref.", "mismatch.", "advantage.", "value.", "entropy.")
    assert all(number is None for name, number in got.items() if name.startswith(tokens))


def test_a_nan_among_the_tokens_shows_and_is_counted():
    data = make_step()
    data["ref_logprobs"][0, 3] = data["advantages"][0, 5] = np.nan
    got = numbers(statistics()(**as_torch(data)).values())
    assert got["train.tokens.nonfinite"] == 2
    for name in ("kl_ref.k1", "kl_ref.k3", "advantage.mean", "advantage.max", "policy.loss", "policy.clip_fraction"):
        assert math.isnan(got[name]), name
    assert error(got["policy.kl_old.k1"], "policy.kl_old.k1", reference(make_step())) < 5e-6


def test_only_what_was_given_is_reported():
    data = make_step()
    got = statistics()(logprobs=torch.from_numpy(data["logprobs"]), mask=torch.from_numpy(data["mask"])).values()
    assert not [name for name in got if name.startswith(("kl_ref", "mismatch", "value", "advantage", "reward"))]
    assert "policy.logp.mean" in got


def test_the_names_can_be_those_of_a_framework():
    data = make_step()
    got = numbers(StepStatistics(clip_high=0.28, names="roll")(**as_torch(data)).values())
    assert error(-got["actor/policykl"], "policy.kl_old.k1", reference(data)) < 5e-6
    assert error(got["tokens/response_length/max"], "length.response.max", reference(data)) < 5e-6


def test_one_advantage_per_sequence_is_spread_over_its_tokens():
    data = make_step()
    per_row = data["rewards"] - 0.3
    data["advantages"] = np.broadcast_to(per_row[:, None], data["mask"].shape).copy()
    whole = numbers(statistics()(**as_torch(data)).values())
    short = numbers(statistics()(**as_torch(data | {"advantages": per_row})).values())
    assert short == whole


def test_half_precision_and_a_mask_of_numbers_are_taken():
    data = make_step()
    tensors = as_torch(data, torch.bfloat16)
    tensors["mask"] = tensors["mask"].float()
    rounded = {name: t.float().numpy() if t.is_floating_point() else t.numpy() for name, t in tensors.items()}
    want = reference(rounded | {"mask": data["mask"]})
    for name, number in numbers(statistics()(**tensors).values()).items():
        assert error(number, name, want) < 5e-6, name


def test_tensors_that_need_a_gradient_are_left_alone():
    tensors = as_torch(make_step())
    tensors["logprobs"].requires_grad_()
    assert statistics()(**tensors).values()
    assert tensors["logprobs"].grad is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ref_logprobs": (3, 3)}, "ref_logprobs must be of shape"),
        ({"rewards": (3,)}, "rewards must be of shape"),
        ({"mask": (3, 3)}, "mask must be of shape"),
        ({"logprobs": (12,)}, "must be \\[sequences, tokens\\]"),
    ],
)
def test_a_shape_that_does_not_fit_is_reported(change, message):
    tensors = as_torch(make_step()) | {name: torch.zeros(shape) for name, shape in change.items()}
    with pytest.raises(ValueError, match=message):
        statistics()(**tensors)


def test_an_unknown_input_is_reported():
    with pytest.raises(TypeError, match="no input is called 'old_logprob'"):
        statistics().enqueue(logprobs=torch.zeros(2, 2), old_logprob=torch.zeros(2, 2))
    with pytest.raises(TypeError, match="logprobs are needed"):
        statistics().enqueue(mask=torch.zeros(2, 2))


def test_reading_before_anything_was_queued_is_reported():
    with pytest.raises(RuntimeError, match="nothing was queued"):
        statistics().arrival()
