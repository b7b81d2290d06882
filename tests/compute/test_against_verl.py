"""The same tensors through verl's functions: always through loops written from their definitions (`verl_by_hand`), and
through verl's own functions if it is installed beside ray: `pip install --no-deps verl tensordict omegaconf
antlr4-python3-runtime==4.9.3 codetiming hydra-core torchdata pyvers`.
"""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import loops
import numpy as np
import pytest
import torch

from compute import verl_by_hand
from rlvitals.compute import advantage, policy, rollout
from rlvitals.compute.aggregate import aggregate
from rlvitals.compute.step import StepStatistics

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", params=["by hand", pytest.param("verl", marks=pytest.mark.slow)])
def verl(request):
    if request.param == "by hand":
        return verl_by_hand
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        core = pytest.importorskip("verl.trainer.ppo.core_algos")
        correction = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")
        data = pytest.importorskip("verl.trainer.ppo.metric_utils")
    return SimpleNamespace(core=core, correction=correction, data=data)


@pytest.fixture(params=range(3), ids="seed{}".format)
def tensors(request):
    given = loops.batch(request.param, with_empty=False)
    return {name: torch.from_numpy(np.nan_to_num(tensor)) for name, tensor in given.items()}


class Settings(SimpleNamespace):
    def get(self, name, otherwise):
        return getattr(self, name, otherwise)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_policy_loss_clip_fractions_and_kl(verl, tensors, mode):
    settings = Settings(clip_ratio=0.2, clip_ratio_low=0.1, clip_ratio_high=0.2, clip_ratio_c=1.3, global_batch_info={})
    loss, metrics = verl.core.compute_policy_loss_vanilla(
        tensors["old_logprobs"], tensors["logprobs"], tensors["advantages"], tensors["mask"], mode, settings
    )
    given = {name: tensors[name] for name in ("logprobs", "old_logprobs", "advantages", "mask")}
    ours = policy.stats(**given, clip_low=0.1, clip_high=0.2, dual_clip=1.3, aggregation=mode, names="verl")
    assert ours["actor/pg_loss"].number == pytest.approx(float(loss), rel=1e-6)
    over_tokens = policy.stats(**given, clip_low=0.1, clip_high=0.2, dual_clip=1.3, names="verl")
    for name, theirs in metrics.items():
        assert over_tokens[name].number == pytest.approx(theirs, abs=1e-6), name


def test_aggregation_and_kl_estimators(verl, tensors):
    x, mask = tensors["advantages"], tensors["mask"]
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
        assert float(aggregate(x, mask, mode)) == pytest.approx(float(verl.core.agg_loss(x, mask, mode)), rel=1e-6)
    # Current verl also divides by the number of sequences. ROLL's mode does so if the horizon includes that number.
    theirs = verl.core.agg_loss(x, mask, "seq-mean-token-sum-norm")
    horizon = x.shape[0] * x.shape[1]
    assert float(aggregate(x, mask, "seq-mean-token-sum-norm", horizon=horizon)) == pytest.approx(float(theirs))
    for name, estimate in policy.KL_ESTIMATORS.items():
        theirs = verl.core.kl_penalty(tensors["logprobs"], tensors["ref_logprobs"], name)
        torch.testing.assert_close(estimate(tensors["logprobs"], tensors["ref_logprobs"]), theirs)


def test_gae_with_whitening(verl, tensors):
    rewards, v, mask = tensors["advantages"], tensors["logprobs"], tensors["mask"]
    theirs, returns = verl.core.compute_gae_advantage_return(rewards, v, mask, 0.99, 0.95)
    ours = advantage.gae(rewards, v, mask, gamma=0.99, lam=0.95)
    torch.testing.assert_close(advantage.whiten(ours.advantages, mask), theirs * mask)
    torch.testing.assert_close(ours.returns, returns * mask)


def test_group_advantages(verl, tensors):
    mask = tensors["mask"]
    groups = np.array([0, 0, 1, 1, 1])
    rewards = tensors["advantages"] * mask
    scores = rewards.sum(-1)
    for by_std in (True, False):
        theirs, _ = verl.core.compute_grpo_outcome_advantage(rewards, mask, groups, norm_adv_by_std_in_grpo=by_std)
        how = {"unbiased": True, "epsilon": 1e-6} if by_std else {"scale": "none"}
        torch.testing.assert_close(advantage.group_relative(scores, groups, **how)[:, None] * mask, theirs)
    theirs, _ = verl.core.compute_rloo_outcome_advantage(rewards, mask, groups)
    torch.testing.assert_close(advantage.leave_one_out(scores, groups)[:, None] * mask, theirs)


def test_value_loss_and_its_clip_fraction(verl, tensors):
    v, returns, old, mask = (tensors[name] for name in ("logprobs", "ref_logprobs", "old_logprobs", "mask"))
    loss, share = verl.core.compute_value_loss(v, returns, old, mask, 0.1)
    ours = advantage.stats(values=v, returns=returns, old_values=old, mask=mask, value_clip=0.1, names="verl")
    assert ours["critic/vf_loss"].number == pytest.approx(float(loss), rel=1e-6)
    assert ours["critic/vf_clipfrac"].number == pytest.approx(float(share), rel=1e-6)


def test_mismatch_of_rollout_and_trainer(verl, tensors):
    train, rollout, mask = tensors["old_logprobs"], tensors["rollout_logprobs"], tensors["mask"]
    theirs = verl.correction.compute_offpolicy_metrics(train, rollout, mask)
    ours = policy.stats(logprobs=train, rollout_logprobs=rollout, mask=mask, names="verl")
    assert len(theirs) >= 13
    for name, number in theirs.items():
        assert ours[f"rollout_corr/{name}"].number == pytest.approx(number, rel=1e-6), name


def test_what_is_logged_of_a_batch_with_responses_without_tokens(verl):
    given = loops.batch(3, sequences=6)  # the last response is empty
    mask = torch.from_numpy(given["mask"])
    mask[0, 0] = 1.0  # verl's attention mask, which gives the width of a response, has no holes
    tensors = {name: torch.from_numpy(np.nan_to_num(tensor)) * mask for name, tensor in given.items()}
    rewards, returns, values = (tensors[name] for name in ("advantages", "ref_logprobs", "old_logprobs"))
    batch = SimpleNamespace(
        batch={
            "token_level_scores": rewards, "token_level_rewards": rewards, "advantages": tensors["advantages"],
            "returns": returns, "values": values, "responses": mask, "prompts": torch.ones(6, 2),
            "response_mask": mask, "attention_mask": torch.cat([torch.ones(6, 2), mask], dim=1),
        },
        non_tensor_batch={},
    )  # fmt: skip
    theirs = verl.data.compute_data_metrics(batch, use_critic=True)
    ours = {
        **advantage.stats(
            advantages=tensors["advantages"], returns=returns, values=tensors["logprobs"], old_values=values,
            token_rewards=rewards, mask=mask, names="verl",
        ),
        **rollout.stats(response_mask=mask, names="verl"),
    }  # fmt: skip
    step = StepStatistics(names="verl", use_kernels=False)(
        logprobs=tensors["logprobs"], advantages=tensors["advantages"], returns=returns, values=tensors["logprobs"],
        old_values=values, mask=mask,
    )  # fmt: skip
    names = [f"critic/{part}/{end}" for part in ("rewards", "advantages", "returns", "values") for end in ENDS]
    names += [f"{part}/{end}" for part in ("response_length", "response_length_non_aborted") for end in ENDS]
    for name in (*names, "critic/vf_explained_var", "response/aborted_ratio"):
        # verl adds 1e-5 to the variance of the returns
        assert ours[name].number == pytest.approx(theirs[name], rel=1e-4 if "explained" in name else 1e-6), name
    shared = [name for name in (*names, "critic/vf_explained_var") if name in step.values()]
    assert len(shared) == 3 * len(ENDS) + len(ENDS) + 1
    for name in shared:
        assert step.values()[name].number == pytest.approx(theirs[name], rel=1e-4 if "explained" in name else 1e-6), (
            name
        )


ENDS = ("mean", "max", "min")
