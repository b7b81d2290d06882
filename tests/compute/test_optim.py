"""Learning rates, gradient norms and their noise."""

from __future__ import annotations

import numpy as np
import pytest

from rlvitals.compute import merge_steps, optim
from rlvitals.errors import ConfigError


def test_a_real_optimiser_and_its_scheduler_give_the_rate_after_the_last_step():
    torch = pytest.importorskip("torch")
    weights = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([{"params": [weights], "lr": 0.5}])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    (weights * torch.tensor([3.0, 4.0, 0.0])).sum().backward()
    norm = optim.gradient_norm(p.grad for p in [weights, torch.nn.Parameter(torch.ones(1))])
    expected = torch.nn.utils.clip_grad_norm_([weights], max_norm=1.0)
    optimizer.step()
    scheduler.step()
    found = optim.stats(
        optimizer=scheduler, critic_optimizer=optimizer, grad_norm=norm, critic_grad_norm=2.0, names="roll"
    )
    assert found["actor/lr"].number == pytest.approx(0.05)
    assert scheduler.get_last_lr()[0] == pytest.approx(found["critic/lr"].number)
    assert found["actor_train/grad_norm"].number == pytest.approx(float(expected)) == pytest.approx(5.0)
    assert found["critic/grad_norm"].number == 2.0


def test_what_is_no_optimiser_or_has_no_gradient_is_reported():
    with pytest.raises(ConfigError, match="found a int"):
        optim.stats(optimizer=3)
    with pytest.raises(ConfigError, match="after backward"):
        optim.gradient_norm([None])


def test_the_noise_of_a_gradient_is_the_variance_of_its_mean():
    draw = np.random.default_rng(0)
    signal, steps = draw.normal(0, 1, 50), []
    noises, signals = [], []
    for _ in range(200):
        parts = signal + draw.normal(0, 3, (8, 50))
        whole = parts.mean(0)
        variance = parts.var(0, ddof=1).sum() / 8  # of the mean of eight, by its definition
        noises.append(variance)
        signals.append(whole @ whole - variance)
        norms = np.linalg.norm(parts, axis=1)
        steps.append(optim.stats(grad_norm=np.linalg.norm(whole), part_grad_norms=norms, lm_head_grad_norm=2.0))
        assert steps[-1]["optim.noise_power"].number == pytest.approx(variance)
    merged = merge_steps(steps)
    assert merged["optim.noise_to_signal"].number == pytest.approx(sum(noises) / sum(signals))
    # The estimate is close to the truth: noise of 9 * 50 / 8 in the mean of eight, and the square of the signal.
    assert merged["optim.noise_to_signal"].number == pytest.approx(9 * 50 / 8 / (signal @ signal), rel=0.1)
    assert merged["optim.lm_head_grad_norm"].number == 2.0


def test_pure_noise_has_no_ratio_and_equal_parts_have_no_noise():
    assert optim.stats(grad_norm=0.0, part_grad_norms=[1.0, 1.0])["optim.noise_to_signal"].number is None
    assert optim.stats(grad_norm=0.5, part_grad_norms=[0.5, 0.5])["optim.noise_to_signal"].number == 0.0


def test_a_noise_that_cannot_be_estimated_is_refused():
    with pytest.raises(ConfigError, match="two parts"):
        optim.stats(grad_norm=1.0, part_grad_norms=[1.0])
    with pytest.raises(ConfigError, match="need grad_norm"):
        optim.stats(part_grad_norms=[1.0, 2.0])
