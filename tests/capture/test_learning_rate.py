"""After a cut, the learning rate is the schedule times the factor, with every scheduler of torch and transformers."""

from __future__ import annotations

import pytest

from rlvitals.capture.actions import scale_learning_rate
from rlvitals.health.actions import Declined

torch = pytest.importorskip("torch")
from torch.optim import lr_scheduler as of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def accelerated(optimizer):
    from accelerate.scheduler import AcceleratedScheduler

    inner = of.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    scheduler = AcceleratedScheduler.__new__(AcceleratedScheduler)  # its constructor needs an accelerator's state
    scheduler.scheduler, scheduler.step = inner, inner.step
    return scheduler


SCHEDULERS = {
    "lambda": lambda o: of.LambdaLR(o, lambda step: 1 / (1 + step)),
    "multiplicative": lambda o: of.MultiplicativeLR(o, lambda step: 0.9),
    "step": lambda o: of.StepLR(o, 3),
    "multistep": lambda o: of.MultiStepLR(o, [4, 8]),
    "constant": lambda o: of.ConstantLR(o, 0.3, 6),
    "linear": lambda o: of.LinearLR(o, 0.1, 1.0, 8),
    "exponential": lambda o: of.ExponentialLR(o, 0.9),
    "polynomial": lambda o: of.PolynomialLR(o, 15, 2.0),
    "cosine": lambda o: of.CosineAnnealingLR(o, 10, eta_min=0.01),
    "restarts": lambda o: of.CosineAnnealingWarmRestarts(o, 4, eta_min=0.01),
    "one cycle": lambda o: of.OneCycleLR(o, 0.5, total_steps=20, cycle_momentum=False),
    "cyclic": lambda o: of.CyclicLR(o, 0.01, 0.2, step_size_up=3, cycle_momentum=False),
    "sequential": lambda o: of.SequentialLR(o, [of.LinearLR(o, 0.1, 1.0, 4), of.ExponentialLR(o, 0.9)], [4]),
    "chained": lambda o: of.ChainedScheduler([of.ConstantLR(o, 0.5, 4), of.ExponentialLR(o, 0.9)]),
    "accelerated": accelerated,
}


def made(name):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (0.1, 0.02)]
    optimizer = torch.optim.AdamW(groups)
    return optimizer, SCHEDULERS[name](optimizer)


def follow(optimizer, scheduler, steps):
    taken = []
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        taken.append([float(group["lr"]) for group in optimizer.param_groups])
    return taken


@pytest.mark.parametrize("at", [0, 2, 5])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_schedule_goes_on_below(name, at):
    whole = follow(*made(name), 12)
    optimizer, scheduler = made(name)
    follow(optimizer, scheduler, at)
    before, after = scale_learning_rate(optimizer, scheduler, 0.5)
    assert after == pytest.approx(before / 2)
    cut = follow(optimizer, scheduler, 12 - at)
    assert cut == [pytest.approx([rate / 2 for rate in rates]) for rates in whole[at:]]


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "accelerated"])
def test_the_cut_is_part_of_what_is_saved(name):
    optimizer, scheduler = made(name)
    follow(optimizer, scheduler, 3)
    scale_learning_rate(optimizer, scheduler, 0.25)
    resumed, resumed_scheduler = made(name)
    resumed.load_state_dict(optimizer.state_dict())
    resumed_scheduler.load_state_dict(scheduler.state_dict())
    assert follow(resumed, resumed_scheduler, 8) == [pytest.approx(rates) for rates in follow(optimizer, scheduler, 8)]


def test_a_plateau_goes_on_from_the_cut_rate():
    optimizer, _ = made("constant")
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    scheduler = of.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, min_lr=0.004)
    scheduler.step(1.0)
    scale_learning_rate(optimizer, scheduler, 0.5)
    for _ in range(3):
        scheduler.step(2.0)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.002, 0.002])


@pytest.mark.slow
def test_a_greedy_schedule_keeps_its_limits_in_proportion():
    from transformers.optimization import GreedyLR

    optimizer, _ = made("constant")
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    scheduler = GreedyLR(optimizer, factor=0.5, patience=0, min_lr=0.04, max_lr=0.2)
    scale_learning_rate(optimizer, scheduler, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.05])
    for loss in range(1, 20):
        scheduler.step(float(loss))
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.02, 0.02])


def test_without_a_scheduler_the_rate_alone_is_cut():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert scale_learning_rate(optimizer, None, 0.5) == (1.0, 0.5)


def test_a_rate_in_a_tensor_is_cut_where_it_is():
    rate = torch.tensor(1.0)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    assert scale_learning_rate(optimizer, None, 0.5) == (1.0, 0.5)
    assert optimizer.param_groups[0]["lr"] is rate


def test_what_has_no_rate_of_its_own_is_reported():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(Declined, match="its own learning rate"):
        scale_learning_rate(optimizer, None, 0.5)
    optimizer.param_groups[0]["lr"] = 1.0
    with pytest.raises(Declined, match="object"):
        scale_learning_rate(optimizer, object(), 0.5)
    assert optimizer.param_groups[0]["lr"] == 1.0
