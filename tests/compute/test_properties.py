"""Padding, order, micro-batches, library and precision do not change the results of any batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import batch

from rlvitals.compute import advantage, merge, policy, preference, rollout
from rlvitals.compute.aggregate import MODES

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

pytestmark = pytest.mark.slow

seeds = st.integers(0, 10_000)
sizes = st.integers(1, 6)


def policy_of(tensors, **options):
    return policy.stats(**tensors, kl_coef=0.1, entropy_coef=0.01, dual_clip=3.0, **options)


def advantage_of(tensors, **options):
    renamed = {
        "returns": tensors["ref_logprobs"], "values": tensors["logprobs"], "old_values": tensors["old_logprobs"],
        "token_rewards": tensors["rollout_logprobs"],
    }  # fmt: skip
    return advantage.stats(advantages=tensors["advantages"], **renamed, mask=tensors["mask"], value_clip=0.1, **options)


def rollout_of(tensors, **options):
    totals = tensors["mask"].sum(-1)
    return rollout.stats(
        response_mask=tensors["mask"], scores=totals / 7, success=totals > 3, score_high=0.5, max_response_length=5,
        **options,
    )  # fmt: skip


def preference_of(tensors, **options):
    return preference.stats(
        logprobs=tensors["logprobs"], ref_logprobs=tensors["ref_logprobs"], mask=tensors["mask"],
        desirable=tensors["mask"].sum(-1) > 3, kl=0.4, **options,
    )  # fmt: skip


FAMILIES = pytest.mark.parametrize("family", [policy_of, advantage_of, rollout_of, preference_of])


def assert_same(one, other, rel=1e-12):
    assert one.keys() == other.keys()
    for name in one:
        assert (one[name].number is None) == (other[name].number is None), name
        if one[name].number is not None:
            assert one[name].number == pytest.approx(other[name].number, rel=rel, abs=1e-12, nan_ok=True), name


def rows(tensors, places):
    return {name: tensor[places] for name, tensor in tensors.items()}


@FAMILIES
@settings(max_examples=30)
@given(seed=seeds, sequences=sizes, extra=st.integers(1, 5))
def test_padding_does_not_show(family, seed, sequences, extra):
    tensors = batch(seed, sequences)
    padded = {
        name: np.pad(tensor, ((0, 0), (0, extra)), constant_values=0.0 if name == "mask" else math.nan)
        for name, tensor in tensors.items()
    }
    assert_same(family(tensors), family(padded))


@FAMILIES
@settings(max_examples=30)
@given(seed=seeds, sequences=sizes)
def test_the_order_of_sequences_does_not_show(family, seed, sequences):
    tensors = batch(seed, sequences)
    order = np.random.default_rng(seed).permutation(sequences)
    assert_same(family(tensors), family(rows(tensors, order)))


@FAMILIES
@settings(max_examples=30)
@given(seed=seeds, sequences=st.integers(2, 9), parts=st.integers(2, 4))
def test_micro_batches_merge_to_the_whole(family, seed, sequences, parts):
    tensors = batch(seed, sequences)
    whole = family(tensors)
    pieces = [family(rows(tensors, places)) for places in np.array_split(np.arange(sequences), parts) if len(places)]
    assert_same(whole, merge(pieces), rel=1e-11)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=30)
@given(seed=seeds)
def test_every_aggregation_merges_where_groups_stay_together(mode, seed):
    tensors = batch(seed, 6)
    groups = np.array([0, 0, 1, 1, 2, 2])
    whole = policy_of(tensors, aggregation=mode, group_ids=groups)
    left, right = (
        policy_of(rows(tensors, places), aggregation=mode, group_ids=groups[places])
        for places in (slice(4), slice(4, 6))
    )
    assert_same(whole, merge([left, right]), rel=1e-11)


@FAMILIES
@settings(max_examples=30)
@given(seed=seeds, sequences=sizes)
def test_torch_gives_what_numpy_gives(family, seed, sequences):
    tensors = batch(seed, sequences)
    assert_same(family(tensors), family({name: torch.from_numpy(tensor) for name, tensor in tensors.items()}))


@settings(max_examples=30)
@given(seed=seeds)
def test_groups_are_the_same_in_both_libraries(seed):
    rng = np.random.default_rng(seed)
    scores, ids = rng.integers(0, 3, 9) / 2.0, rng.integers(0, 4, 9)
    one = rollout.stats(scores=scores, success=scores > 0.5, group_ids=ids, pass_k=(1, 2), min_group_std=0.05)
    for group_ids in (torch.from_numpy(ids), ids.astype(str)):
        other = rollout.stats(
            scores=torch.from_numpy(scores),
            success=torch.from_numpy(scores > 0.5),
            group_ids=group_ids,
            pass_k=(1, 2),
            min_group_std=0.05,
        )
        assert_same(one, other)
    np.testing.assert_allclose(
        advantage.group_relative(scores, ids), advantage.group_relative(torch.from_numpy(scores), torch.from_numpy(ids))
    )
    np.testing.assert_allclose(
        advantage.leave_one_out(scores, ids), advantage.leave_one_out(torch.from_numpy(scores), torch.from_numpy(ids))
    )


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_is_summed_exactly(precision):
    tensors = {name: torch.from_numpy(tensor).to(precision) for name, tensor in batch(0, 9, 30).items()}
    exact = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    assert_same(policy_of(tensors), policy_of(exact))


def test_gradients_are_left_alone():
    lp = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    assert policy.stats(logprobs=lp, old_logprobs=lp.detach())["policy.ratio.mean"].number == 1.0
    policy.policy_gradient_loss(policy.ratio(lp, lp.detach()), [[1.0, 2.0]]).sum().backward()
    assert lp.grad.tolist() == [[-1.0, -2.0]]


class NoReading(TorchDispatchMode):
    """Fails on any operation that makes the host wait for the device."""

    SYNCHRONISING = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "unique", "masked_select", "equal")

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        assert not name.startswith(self.SYNCHRONISING), f"{name} waits for the device"
        return operation(*args, **(kwargs or {}))


def test_the_guard_notices_a_read():
    with NoReading(), pytest.raises(AssertionError, match="waits for the device"):
        float(torch.ones(1).sum())


def test_packing_reads_nothing_from_the_device():
    tensors = {name: torch.from_numpy(tensor) for name, tensor in batch(1).items()}
    groups = torch.tensor([0, 0, 1, 1, 2])
    with NoReading():
        packed = [
            policy.pack(**tensors, group_ids=groups, aggregation=mode, kl_coef=0.1, dual_clip=3.0, names="roll")
            for mode in MODES
        ]
        packed.append(
            advantage.pack(
                advantages=tensors["advantages"],
                returns=tensors["logprobs"],
                values=tensors["old_logprobs"],
                old_values=tensors["old_logprobs"],
                mask=tensors["mask"],
                value_clip=0.1,
            )
        )
        lengths = tensors["mask"].sum(-1)
        packed.append(
            rollout.pack(
                response_lengths=lengths,
                scores=lengths,
                success=lengths > 3,
                group_ids=groups,
                pass_k=(1, 2),
                min_group_std=0.1,
                max_response_length=4,
            )
        )
        packed.append(
            preference.pack(
                logprobs=lengths,
                ref_logprobs=lengths,
                desirable=lengths > 3,
                kl_logprobs=lengths,
                ref_kl_logprobs=lengths,
            )
        )
        advantage.gae(tensors["logprobs"], tensors["old_logprobs"], tensors["mask"])
        advantage.whiten(tensors["logprobs"], tensors["mask"])
    for sheet in packed:
        assert sheet.moments.shape == (len(sheet.moments), 5)
        assert len(sheet.values()) == len(sheet.entries)


def test_a_logged_row_holds_what_was_measured(tmp_path):
    import rlvitals

    tensors = batch(2)
    measured = {**policy_of(tensors, names="roll"), **advantage_of(tensors, names="roll")}
    with rlvitals.start(tmp_path / "run", monitor=False) as run:
        run.log(measured, step=1)
    stored = rlvitals.open_run(tmp_path / "run")
    defined = {name: value.number for name, value in measured.items() if value.number is not None}
    assert len(defined) > 50
    for name, number in defined.items():
        assert stored.series(name)[1][0] == number


def test_an_evaluation_keeps_derived_numbers(tmp_path):
    import rlvitals

    measured = rollout.stats(success=[1, 0, 1], group_ids=[0, 1, 2], pass_k=[1, 2])
    with rlvitals.start(tmp_path / "run", monitor=False) as run:
        run.log_eval(measured, step=1)
    stored = rlvitals.open_run(tmp_path / "run")
    assert stored.series("eval.pass_at_k/1/low", stream="eval")[1][0] == measured["eval.pass_at_k/1/low"].number
    assert "eval.pass_at_k/2/low" not in stored.metrics
