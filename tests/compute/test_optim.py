"""Learning rates and gradient norms."""

from __future__ import annotations

import pytest

from rlvitals.compute import optim
from rlvitals.errors import ConfigError


def test_a_real_optimiser_and_its_scheduler_tell_the_rate_after_the_last_step():
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


def test_what_is_no_optimiser_or_has_no_gradient_is_said():
    with pytest.raises(ConfigError, match="found a int"):
        optim.stats(optimizer=3)
    with pytest.raises(ConfigError, match="after backward"):
        optim.gradient_norm([None])
