"""The same tensors through TRL's own code. Only its networks are replaced, by ones that return given log-probs."""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

from rlvitals.compute import advantage, policy, preference

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def trainers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.trainer import dpo_trainer, grpo_trainer, kto_trainer, utils
    return SimpleNamespace(
        GRPO=grpo_trainer.GRPOTrainer, KTO=kto_trainer.KTOTrainer, DPO=dpo_trainer.DPOTrainer, utils=utils
    )


def one_process():
    return SimpleNamespace(
        device="cpu",
        num_processes=1,
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction: x,
    )


def test_entropy_and_log_probs_from_logits(trainers):
    logits = torch.randn(3, 5, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    torch.testing.assert_close(policy.entropy(logits), trainers.utils.entropy_from_logits(logits))
    ids = torch.randint(0, 40, (3, 5), generator=torch.Generator().manual_seed(1))
    ours = torch.gather(policy._log_softmax(logits), -1, ids[..., None])[..., 0]
    torch.testing.assert_close(ours, trainers.utils.selective_log_softmax(logits, ids))


def grpo_batch():
    rng = np.random.default_rng(3)
    mask = (np.arange(6) < np.array([6, 3, 1, 4])[:, None]) * 1.0
    old = -rng.exponential(1.0, mask.shape)
    near = {name: old + rng.normal(0, spread, old.shape) for name, spread in (("lp", 0.3), ("ref", 0.4))}
    tensors = {name: torch.from_numpy(x) for name, x in (*near.items(), ("old", old), ("mask", mask))}
    tensors["entropy"] = torch.from_numpy(rng.exponential(1.0, mask.shape))
    tensors["advantages"] = torch.from_numpy(rng.normal(0, 1, 4))
    return SimpleNamespace(**tensors)


def run_grpo(trainers, batch, *, loss_type, level):
    metrics = {"train": defaultdict(list)}
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (batch.lp, batch.entropy, None),
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None,
        importance_sampling_level=level, beta=0.04, loss_type=loss_type, epsilon_low=0.1, epsilon_high=0.2,
        use_vllm=False, vllm_importance_sampling_correction=False, _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1, max_completion_length=6, model=SimpleNamespace(training=True),
        accelerator=one_process(), _metrics=metrics, use_adaptive_entropy=False,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
    )  # fmt: skip
    inputs = {
        "prompt_ids": torch.zeros(4, 1), "prompt_mask": torch.ones(4, 1), "completion_ids": torch.zeros(4, 6),
        "completion_mask": batch.mask, "advantages": batch.advantages, "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.ref, "num_items_in_batch": batch.mask.sum(),
    }  # fmt: skip
    loss = trainers.GRPO._compute_loss(trainer, None, inputs)
    return float(loss), {name: series[0] for name, series in metrics["train"].items()}


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    ("loss_type", "aggregation"),
    [("grpo", "seq-mean-token-mean"), ("bnpo", "token-mean"), ("dr_grpo", "seq-mean-token-sum-norm")],
)
def test_grpo_losses_and_metrics(trainers, loss_type, aggregation, level):
    batch = grpo_batch()
    loss, metrics = run_grpo(trainers, batch, loss_type=loss_type, level=level)
    given = {
        "logprobs": batch.lp, "old_logprobs": batch.old, "ref_logprobs": batch.ref, "advantages": batch.advantages,
        "mask": batch.mask, "entropy": batch.entropy, "clip_low": 0.1, "clip_high": 0.2, "ratio_level": level,
        "kl_coef": 0.04, "names": "trl",
    }  # fmt: skip
    ours = policy.stats(**given, aggregation=aggregation)
    # Dr. GRPO also divides by the number of sequences; the mode of ROLL and verl only sums over them.
    assert ours["loss"].number / (4 if loss_type == "dr_grpo" else 1) == pytest.approx(loss, rel=1e-10)
    over_tokens = policy.stats(**given)
    compared = 0
    for name in (
        "kl",
        "entropy",
        "clip_ratio/low_mean",
        "clip_ratio/high_mean",
        "clip_ratio/region_mean",
        "clip_ratio/low_min",
        "clip_ratio/high_max",
    ):
        if level == "sequence" and name.startswith("clip_ratio"):
            continue  # TRL counts sequences, rlvitals counts their tokens
        assert over_tokens[name].number == pytest.approx(metrics[name], rel=1e-6), name
        compared += 1
    assert compared >= 2


def test_kto_loss_rewards_and_kl(trainers):
    rng = np.random.default_rng(4)
    mask = torch.from_numpy((np.arange(7) < np.array([7, 3, 5, 2, 6])[:, None]) * 1.0)
    lp = torch.from_numpy(-rng.exponential(1.0, (5, 6))) * mask[:, 1:]
    ref, kl_lp, kl_ref = (torch.from_numpy(-rng.exponential(5.0, 5)) for _ in range(3))
    labels = torch.tensor([True, False, False, True, False])
    outputs = SimpleNamespace(log_probs=lp, entropy=torch.ones(5, 6), mean_logits=torch.zeros(5, 6))
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True), accelerator=one_process(), _compute_kl_logps=lambda *_: kl_lp,
        aux_loss_enabled=False, precompute_ref_logps=True, calculate_KL=True, loss_type="kto", beta=0.1,
        desirable_weight=1.2, undesirable_weight=0.8, _metrics={"train": defaultdict(list)}, _total_train_tokens=0,
        _tp_size=1,
    )  # fmt: skip
    inputs = {
        "label": labels, "input_ids": torch.zeros(5, 7, dtype=torch.long), "completion_mask": mask,
        "attention_mask": torch.ones(5, 7), "ref_logps": ref, "ref_KL_logps": kl_ref,
    }  # fmt: skip
    loss = trainers.KTO._compute_loss(trainer, lambda **_: outputs, inputs, False)
    ours = preference.stats(
        logprobs=lp.sum(-1), ref_logprobs=ref, desirable=labels, kl_logprobs=kl_lp, ref_kl_logprobs=kl_ref, beta=0.1,
        desirable_weight=1.2, undesirable_weight=0.8, names="trl",
    )  # fmt: skip
    assert ours["loss"].number == pytest.approx(float(loss), rel=1e-6)
    theirs = {name: series[0] for name, series in trainer._metrics["train"].items()}
    for name in ("kl", "rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected"):
        assert ours[name].number == pytest.approx(theirs[name], rel=1e-6), name


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
def test_dpo_loss_rewards_and_accuracies(trainers, loss):
    rng = np.random.default_rng(5)
    mask = torch.from_numpy((np.arange(7) < np.array([7, 3, 5, 2, 6, 4])[:, None]) * 1.0)
    mask[:, 0] = 0.0  # the prompt
    lp = torch.from_numpy(-rng.exponential(1.0, (6, 6))) * mask[:, 1:]
    ref_won, ref_lost = (torch.from_numpy(-rng.exponential(5.0, 3)) for _ in range(2))
    outputs = SimpleNamespace(
        log_probs=lp, entropy=torch.ones(6, 6), mean_logits=torch.zeros(6, 6), is_top1=torch.ones(6, 6).bool()
    )
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True), accelerator=one_process(), aux_loss_enabled=False, ld_alpha=None,
        precompute_ref_logps=True, f_divergence_type="reverse_kl", loss_types=[loss], loss_weights=[1.0], beta=0.1,
        label_smoothing=0.0, use_weighting=False, _metrics={"train": defaultdict(list)}, _total_train_tokens=0,
        _tp_size=1,
    )  # fmt: skip
    inputs = {
        "input_ids": torch.zeros(6, 7, dtype=torch.long), "completion_mask": mask, "attention_mask": torch.ones(6, 7),
        "ref_chosen_logps": ref_won, "ref_rejected_logps": ref_lost,
    }  # fmt: skip
    value = trainers.DPO._compute_loss(trainer, lambda **_: outputs, inputs, False)
    won, lost = lp.sum(-1).chunk(2)
    references = {"ref_chosen_logprobs": ref_won, "ref_rejected_logprobs": ref_lost}
    ours = preference.stats(chosen_logprobs=won, rejected_logprobs=lost, **references, beta=0.1, names="trl")
    theirs = {name: series[0] for name, series in trainer._metrics["train"].items()}
    for side in ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen"):
        assert ours[side].number == pytest.approx(theirs[side], rel=1e-6), side
    if loss == "sigmoid":
        assert ours["loss"].number == pytest.approx(float(value), rel=1e-10)
        return
    lengths = mask[:, 1:].sum(-1)
    won, lost, ref_won, ref_lost = (
        x / n for x, n in ((won, lengths[:3]), (lost, lengths[3:]), (ref_won, lengths[:3]), (ref_lost, lengths[3:]))
    )
    references = {"ref_chosen_logprobs": ref_won, "ref_rejected_logprobs": ref_lost}
    averaged = preference.stats(
        chosen_logprobs=won, rejected_logprobs=lost, **references, beta=0.1, loss="ipo", names="trl"
    )
    assert averaged["loss"].number == pytest.approx(float(value), rel=1e-10)


def test_group_relative_advantages_are_those_of_grpo():
    rewards = torch.tensor([1.0, 0.0, 0.5, 2.0, 2.0, 1.0], dtype=torch.float64)
    grouped = rewards.view(2, 3)
    theirs = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    ours = advantage.group_relative(rewards, [0, 0, 0, 1, 1, 1], unbiased=True, epsilon=1e-4)
    torch.testing.assert_close(ours, theirs.reshape(-1))
