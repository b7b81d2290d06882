"""The page that lists which function computes which metric is correct: each function is called, and its value under the
metric's name equals the value of the definition.
"""

from __future__ import annotations

import csv
import math
import re
from importlib import import_module
from types import SimpleNamespace

import psutil
import pytest

import rlvitals
from capture.test_hardware import Busy
from capture.test_phases import Card, Clock
from compute import by_hand
from compute.by_hand import ALL
from compute.step_data import every_input
from conftest import REPO
from rlvitals import catalog, values
from rlvitals.capture.counters import Rates, Throughput
from rlvitals.capture.hardware import GpuSample, Machine, combined
from rlvitals.capture.phases import Phases
from rlvitals.compute import advantage, optim, policy, rollout
from rlvitals.views.epochs import gather

PAGE = REPO / "docs" / "measure-coverage.md"
ROWS = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE)
ROLL, RLAIF = (set(re.findall(r"^\| `([^`]+)` \| `", half, re.MULTILINE)) for half in PAGE.read_text().split("## ")[1:])
GIB = 2**30


def named(stats):
    return {name: value.number for name, value in stats.items()}


def tensors(*wanted):
    """Inputs by name, as keyword arguments of one call."""
    return {name: array for name, array in every_input().items() if name in wanted}


def by_policy():
    given = tensors("logprobs", "old_logprobs", "ref_logprobs", "advantages", "entropy", "mask", "scores",
                    "sample_weights")  # fmt: skip
    clips = {"clip_low": ALL.clip_low, "clip_high": ALL.clip_high, "dual_clip": ALL.dual_clip}
    settings = clips | {"kl_coef": ALL.kl_coef, "entropy_coef": ALL.entropy_coef}
    plain = {name: given[name] for name in ("logprobs", "ref_logprobs", "advantages", "entropy", "mask")}
    coefficients = {"kl_coef": ALL.kl_coef, "entropy_coef": ALL.entropy_coef}
    return {
        **named(policy.stats(**given, **settings, names="roll")),
        **named(policy.stats(**plain, **coefficients, names="rlaif")),
    }


def by_advantage():
    given = tensors("advantages", "returns", "values", "old_values", "token_rewards", "mask")
    return named(advantage.stats(**given, value_clip=ALL.value_clip, names="roll"))


def by_rollout():
    given = every_input()
    weights = {"Correctness": 0.4, "CodeQuality": 0.3, "Efficiency": 0.2, "Documentation": 0.1}
    parts = dict.fromkeys(weights, given["rewards"])
    measured = {"scores": given["rewards"], "score_low": ALL.score_low, "score_high": ALL.score_high}
    return {
        **named(
            rollout.stats(**measured, response_mask=given["mask"], prompt_lengths=given["prompt_lengths"], names="roll")
        ),
        **named(rollout.stats(scores=given["rewards"], stage="eval", names="roll")),
        **named(rollout.stats(scores=given["rewards"], names="rlaif")),
        **named(rollout.stats(components=parts, component_weights=weights, names="rlaif")),
    }


def by_optim():
    actor, critic = (SimpleNamespace(param_groups=[{"lr": rate}]) for rate in (1e-6, 5e-6))
    return named(optim.stats(optimizer=actor, critic_optimizer=critic, names="roll"))


def by_throughput():
    loop = Throughput(since=0.0)
    loop.count(tokens=300, samples=8)
    return loop.take(12.0)


def by_rates():
    rates = Rates("rlaif")
    for tokens, seconds in ((100, 2.0), (100, 1.0)):
        rates.add("generate", tokens, seconds)
        rates.add("backprop", 2 * tokens, seconds)
        row = rates.take()
    return row


def by_timer():
    clock = Clock()
    phases = Phases(clock=clock)
    for seconds, name in enumerate(("rollout", "ref_log_probs_values_reward", "old_log_probs_values", "adv"), 1):
        with phases.timer(name):
            clock.pass_(seconds)
    return phases.take()


def by_phase():
    card, clock = Card(), Clock()
    phases = Phases(clock=clock, devices=lambda: card)
    card.hold(1)

    def load():
        card.hold(20)
        clock.pass_(2)

    def unload():
        card.hold(2)
        clock.pass_(3)

    with phases.phase("train_step", onload=load, offload=unload):
        card.hold(60)
        card.hold(30)
        clock.pass_(10)
    row = phases.take()
    return {name.replace("train_step", "{metric_infix}").replace("/0", "/{device_id}"): x for name, x in row.items()}


def by_machine():
    return Machine(host=Busy, gpus=lambda: None).sample()


def by_gpus():
    return combined([GpuSample(utilisation=37.0, memory_used=20.0, memory_total=80.0, power=310.0, temperature=61.0)])


def by_epochs(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, framework="rlaif") as run:
        for step, (epoch, rewards, losses) in enumerate(EPOCHS, 1):
            row = {
                "epoch": epoch, "Train/AvgReward": values.mean(rewards), "Train/Loss": values.mean(losses),
                "Epoch/APITokens": 100,
            }  # fmt: skip
            run.log(row, step=step)
    return gather(rlvitals.open_run(tmp_path / "run"))[-1].metrics


EPOCHS = [(1, [0.0, 1.0], [3.0, 5.0]), (2, [1.0, 1.0, 0.0], [2.0, 1.0]), (2, [0.5], [3.0])]
LAST_REWARDS, LAST_LOSSES = [1.0, 1.0, 0.0, 0.5], [2.0, 1.0, 3.0]

CALLS = {
    "rlvitals.compute.policy.stats": by_policy,
    "rlvitals.compute.advantage.stats": by_advantage,
    "rlvitals.compute.rollout.stats": by_rollout,
    "rlvitals.compute.optim.stats": by_optim,
    "rlvitals.capture.counters.Throughput.take": by_throughput,
    "rlvitals.capture.counters.Rates.take": by_rates,
    "rlvitals.capture.phases.Phases.timer": by_timer,
    "rlvitals.capture.phases.Phases.phase": by_phase,
    "rlvitals.capture.hardware.Machine.sample": by_machine,
    "rlvitals.capture.hardware.combined": by_gpus,
    "rlvitals.views.epochs.gather": by_epochs,
}
"""Every function of the page, called with inputs whose correct results are known."""

OTHERWISE = {
    "actor/policykl": ("policy.kl_old.k1", -1.0),  # the other sign
    "critic/value": ("value.mean", 1.0),
    "critic/vpred": ("value.predicted.mean", 1.0),
    "actor/ppo_ratio_clipfrac": ("policy.ratio_outside", 1.0),
    "actor/ppo_ratio_high_clipfrac": ("policy.ratio_outside.upper", 1.0),
    "actor/ppo_ratio_low_clipfrac": ("policy.ratio_outside.lower", 1.0),
    "val/score/mean": ("reward.total.mean", 1.0),  # the same scores, in an evaluation
    "val/score/max": ("reward.total.max", 1.0),
    "val/score/min": ("reward.total.min", 1.0),
}
"""Names whose first id in the catalogue is another metric: the right id, and its sign."""


def definitions():
    """The correct value of every metric of the page."""
    given = every_input()
    known = by_hand.numbers(given, ALL)
    plain = {name: given[name] for name in ("logprobs", "ref_logprobs", "advantages", "entropy", "mask")}
    reinforce = by_hand.numbers(plain, ALL)  # the student has no old policy
    rewards = [float(reward) for reward in given["rewards"]]
    found = {
        "critic/lr": 5e-6, "actor/lr": 1e-6,
        "system/tps": 300 / 12, "system/samples": 8,
        "time/rollout": 1.0, "time/ref_log_probs_values_reward": 2.0, "time/old_log_probs_values": 3.0, "time/adv": 4.0,
        "time/{metric_infix}/total": 15.0, "time/{metric_infix}/execute": 10.0, "time/{metric_infix}/onload": 2.0,
        "time/{metric_infix}/offload": 3.0,
        "Train/Loss": reinforce["train.loss"], "Train/PolicyLoss": reinforce["policy.loss"],
        "Train/KLPenalty": reinforce["kl_ref.penalty"],
        "Train/RewardStd": math.sqrt(by_hand.variance(rewards)), "Train/RewardVariance": by_hand.variance(rewards),
        "Epoch/AvgReward": by_hand.mean(LAST_REWARDS), "Epoch/AvgLoss": by_hand.mean(LAST_LOSSES),
        "Epoch/RewardVariance": by_hand.variance(LAST_REWARDS), "Epoch/NumSamples": 4, "Epoch/APITokens": 200,
        "Epoch/RewardTrend": by_hand.mean(LAST_REWARDS) - 0.5, "Epoch/LossTrend": 4.0 - by_hand.mean(LAST_LOSSES),
        "Performance/Generation_TokensPerSec": 100.0, "Performance/Generation_Time": 1.0,
        "Performance/Generation_AvgTokensPerSec": 200 / 3, "Performance/Generation_P99TokensPerSec": 99.5,
        "Performance/Backprop_TokensPerSec": 200.0, "Performance/Backprop_AvgTokensPerSec": 400 / 3,
        "Performance/Backprop_P99TokensPerSec": 199.0,
        "Scoring/Correctness": 0.4, "Scoring/CodeQuality": 0.3, "Scoring/Efficiency": 0.2, "Scoring/Documentation": 0.1,
        "System/CPU_Percent": 25.0, "System/Memory_Percent": 75.0, "System/Memory_Used_GB": 12.0,
        "System/Memory_Available_GB": 4.0, "System/GPU_Memory_Used_GB": 20.0, "System/GPU_Memory_Total_GB": 80.0,
        "System/GPU_Memory_Percent": 25.0, "System/GPU_Utilization": 37.0,
    }  # fmt: skip
    held = {"start/offload": (1, 1), "start/onload": (20, 20), "end/onload": (30, 60), "end/offload": (2, 60)}
    for point, (now, peak) in held.items():
        for counter, gib in (
            ("allocated", now), ("reserved", now + 1), ("max_allocated", peak), ("max_reserved", peak + 1)
        ):  # fmt: skip
            found[f"memory/{{metric_infix}}/{point}/{counter}/{{device_id}}"] = gib
    for counter, gib in (("max_allocated", 60), ("max_reserved", 61)):
        found[f"memory/{{metric_infix}}/end/onload/{counter}_frac/{{device_id}}"] = gib / 80
    memory = psutil.Process().memory_info()
    for point in ("start", "end"):
        found[f"memory/cpu/{{metric_infix}}/{point}/rss"] = memory.rss / GIB
        found[f"memory/cpu/{{metric_infix}}/{point}/vms"] = memory.vms / GIB
    found["System/Process_Memory_GB"] = memory.rss / GIB
    for name in {name for name, _, _ in ROWS} - found.keys():
        metric, sign = OTHERWISE.get(name) or (_id(name), 1.0)
        found[name] = sign * known[metric]
    return found


def _id(name):
    return catalog.find(name, "rlaif" if name in RLAIF else "roll")[0].metric.id


def resolve(dotted: str) -> object:
    """The object with a dotted name: the longest part that is a module, then attributes."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(f"{dotted} is no module")


def test_every_function_exists_and_is_called_here():
    functions = {function for _, function, _ in ROWS}
    assert functions == CALLS.keys()
    assert all(callable(resolve(function)) for function in functions)


@pytest.mark.parametrize("function", CALLS)
def test_every_function_gives_the_numbers_of_the_page(function, tmp_path):
    call = CALLS[function]
    got, want = call(tmp_path) if call is by_epochs else call(), definitions()
    metrics = [name for name, by, _ in ROWS if by == function]
    assert metrics
    for name in metrics:
        assert name in got, f"{function} gives no {name}"
        of_process = name.startswith(("memory/cpu", "System/Process"))  # changes while it is measured
        assert got[name] == pytest.approx(want[name], rel=0.05 if of_process else 1e-9, abs=1e-12), name


@pytest.mark.parametrize("test", sorted({test for _, _, test in ROWS}))
def test_every_test_exists(test):
    file, name = test.split("::")
    assert re.search(rf"^def {name}\(", (REPO / file).read_text(), re.MULTILINE)


def test_every_metric_of_the_documents_is_there_once(shared):
    with (shared / "reference" / "document-metrics.tsv").open() as file:
        listed = [row["name"] for row in csv.DictReader(file, delimiter="\t") if row["document"] in ("001", "004")]
    assert len(listed) == 89 + 35
    assert sorted(name for name, _, _ in ROWS) == sorted(listed)
