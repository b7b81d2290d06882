"""Failures that show in reward and behaviour: signal, hacking, length, truncation, agents."""

from __future__ import annotations

import numpy as np

from corpus.bends import (
    abandon_tools,
    collapse_reward,
    grow_length,
    harm,
    hold,
    run_in_circles,
    shrink_length,
    stop_learning,
    times,
)  # fmt: skip
from corpus.build import Scene, Variant
from corpus.habits import AGENT
from corpus.latent import Series, ramp, rise
from corpus.noise import wobble


def floor(scene: Scene) -> None:
    """No answer earns anything: a broken verifier, an unreachable task."""
    c = scene.curves
    c.skill = np.where(np.arange(scene.n) >= scene.at, -60.0, c.skill)
    c.truth = hold(c.truth, scene.at)
    c.format = np.where(np.arange(scene.n) >= scene.at, 0.0, c.format)
    for name in ("kl", "entropy", "length"):  # the remaining gradient moves nothing
        setattr(c, name, hold(getattr(c, name), scene.at))
    if scene.at == 0:
        c.kl = 3e-4 * np.sqrt(np.arange(1, scene.n + 1) / scene.n)


def stand_still(scene: Scene) -> None:
    """Gradients and KL are above zero, and the reward does not change."""
    c, world = scene.curves, scene.world
    c.skill = np.full(scene.n, float(np.log(world.start / (1 - world.start))))
    c.truth = c.skill - 0.1
    c.format = np.full(scene.n, 0.9)
    for name in ("entropy", "length"):
        values = getattr(c, name)
        setattr(c, name, values[0] + 0.15 * (values - values[0]))
    c.kl = 0.3 * c.kl
    c.progress = np.zeros(scene.n)


def level_off(scene: Scene) -> None:
    """Progress until the onset, then a plateau well below the maximum; the policy keeps moving."""
    c = scene.curves
    gained = (c.skill[-1] - c.skill[0]) * rise(scene.n, 0, scene.at / 3)
    c.skill = hold(c.skill[0] + gained, scene.at)
    c.truth = c.skill - 0.1
    c.format = hold(c.format, scene.at)
    c.entropy = hold(c.entropy, scene.at)


def too_hard(scene: Scene) -> None:
    """Hardly any group contains a right answer, and that does not change."""
    c = scene.curves
    c.skill = np.full(scene.n, -6.0)
    c.truth = c.skill
    c.format = np.full(scene.n, 1.0)
    for name in ("entropy", "length"):
        values = getattr(c, name)
        setattr(c, name, values[0] + 0.2 * (values - values[0]))
    c.progress = np.zeros(scene.n)


def repeat_answers(scene: Scene) -> None:
    """The samples of a group become identical: no spread and no signal, while the mean reward stays."""
    c = scene.curves
    stop_learning(scene, 5)
    c.diversity = 1 - 0.92 * ramp(scene.n, scene.at, 0.2 * scene.n)
    c.format = hold(c.format, scene.at)


def hack(fall: float, speed: float = 0.25):
    """The policy exploits the proxy: its reward climbs to the top, the true score does not, length and KL grow."""

    def bend(scene: Scene) -> None:
        c, n = scene.curves, scene.n
        true = hold(c.truth, scene.at)
        c.truth = true - fall * scene.hard * ramp(n, scene.at, 2 * speed * n)
        c.skill = c.skill + 3.0 * scene.hard * ramp(n, scene.at, speed * n)
        c.kl = times(c.kl, scene, 2.5, speed * n)
        c.length = times(c.length, scene, 1.4, speed * n)
        c.entropy = times(c.entropy, scene, 0.55, speed * n)

    return bend


def forget_range(scene: Scene) -> None:
    """The settings do not name the range of the reward, because a component has no bound."""
    for key in ("reward_min", "reward_max"):
        scene.config.pop(key, None)


def compiles(scene: Scene, series: Series) -> None:
    """Code that compiles earns the reward. The share of correct code is logged as well and hardly moves."""
    n, size = scene.n, scene.world.prompts * scene.world.group
    series["part_format"] = series["reward"].copy()
    series["part_main"] = scene.rng.binomial(size, 0.002 + 0.003 * ramp(n, 0, n), n) / size


def fixed_truth(scene: Scene, series: Series) -> None:
    """A second component holds the true score: it falls while the rewarded one climbs."""
    n, size = scene.n, scene.world.prompts * scene.world.group
    true = scene.rng.binomial(size, np.clip(0.22 - 0.1 * ramp(n, scene.at, 0.4 * n), 0, 1), n) / size
    proxy = series["part_main"]
    series["part_main"], series["part_main_std"] = true, np.sqrt(true * (1 - true))
    series["part_format"] = proxy
    series["reward"] = true + proxy
    forget_range(scene)


def take_over(weight: float):
    """An auxiliary component grows until it causes almost all changes of the total."""

    def touch(scene: Scene, series: Series) -> None:
        n = scene.n
        share = ramp(n, scene.at, 0.25 * n)
        pay = weight * scene.hard * share * wobble(scene.rng, n, 0.35, rho=0.3)
        series["part_format"] = series["part_format"] + pay
        series["part_format_std"] = series["part_format_std"] + 0.5 * pay
        series["reward"] = series["reward"] + pay
        series["reward_std"] = series["reward_std"] + 0.4 * pay
        forget_range(scene)

    return touch


def never_end(share: float):
    """Answers no longer end: a growing share hits the limit and earns nothing."""

    def bend(scene: Scene) -> None:
        stop_learning(scene)
        scene.curves.endless = share * ramp(scene.n, scene.at, 0.15 * scene.n) if scene.at else np.full(scene.n, share)

    return bend


def break_tools(share: float):
    """Tool calls fail because the sandbox is down or the schema changed; the reward falls as a result."""

    def bend(scene: Scene) -> None:
        c, n = scene.curves, scene.n
        failing = share * scene.hard * ramp(n, scene.at, 8) * wobble(scene.rng, n, 0.1)
        c.extra["tool_failures"] = np.clip(c.extra["tool_failures"] + failing, 0, 1)
        c.extra["tool_success"] = 1 - c.extra["tool_failures"]
        harm(scene, 3, 0.9, 8)

    return bend


def loop(scene: Scene) -> None:
    """The agent repeats itself: the same searches, the same text."""
    extra, n = scene.curves.extra, scene.n
    share = ramp(n, scene.at, 0.2 * n)
    if "repetition" in extra:
        extra["repetition"] = np.clip(extra["repetition"] + 0.4 * scene.hard * share * wobble(scene.rng, n, 0.15), 0, 1)
        scene.curves.length = times(scene.curves.length, scene, 1.8, 0.2 * n)
    else:
        extra["searches"] = np.round(extra["searches"] * (1 + 0.6 * share))
        extra["repeated"] = np.round(extra["repeated"] + 0.45 * scene.hard * share * extra["searches"])
        extra["unique"] = extra["searches"] - extra["repeated"]
        extra["search_attempts"] = extra["searches"] / 100
    stop_learning(scene)
    harm(scene, 0.1 * n, 0.6, 0.2 * n)


def give_up(scene: Scene) -> None:
    """The agent gives up early with "I don't know": rollouts end at once and fewer answers are attempted."""
    extra, n, world = scene.curves.extra, scene.n, scene.world
    share = ramp(n, scene.at, 0.12 * n)
    rollouts = world.prompts * world.group
    extra["early_exit"] = np.round(extra["early_exit"] + (0.97 * rollouts - extra["early_exit"]) * share)
    extra["idk"] = np.round(extra["idk"] + 75 * scene.hard * 0.8 * share)
    extra["turns_idk"] = extra["turns_idk"] * (1 - 0.7 * share)
    stop_learning(scene)
    harm(scene, 3, 2.2, 0.1 * n)


def filter_out(scene: Scene) -> None:
    """Almost every group is filtered out because its rewards have no variance."""
    c, n = scene.curves, scene.n
    share = ramp(n, scene.at, 0.15 * n)
    c.diversity = 1 - 0.93 * share
    if "keep_rate" in c.extra:
        c.extra["keep_rate"] = np.clip(c.extra["keep_rate"] * (1 - 0.88 * share), 0, 1)
    stop_learning(scene)


V = Variant
LONG = {"points": (320, 400)}
CALLS = {"turns": 7.0, "max_turns": 16.0}
VARIANTS: tuple[Variant, ...] = (
    V("reward_collapse", "trl", "grpo", "", bend=collapse_reward(3.0, 12)),
    V("reward_collapse", "roll", "grpo", "slow", bend=collapse_reward(2.5, 30), onset=(0.3, 0.5)),
    V("reward_collapse", None, "ppo", "", bend=collapse_reward(4.0, 8), config=None),
    V("reward_collapse", "verl", "grpo", "agent", bend=abandon_tools(8, 0.4), accept=("tool_abandonment",),
      world=AGENT),
    V("reward_floor", "trl", "grpo", "from-start", bend=floor, onset=(0, 0)),
    V("reward_floor", "verl", "grpo", "from-start", bend=floor, onset=(0, 0), world={"reward_low": -1.0}),
    V("reward_floor", "skyrl", "grpo", "verifier-dies", bend=floor, accept=("reward_collapse",)),
    V("not_learning", "trl", "grpo", "", bend=stand_still, onset=(0, 0), world=LONG),
    V("not_learning", "verl", "grpo", "", bend=stand_still, onset=(0, 0), world={**LONG, "start": 0.45, "prompts": 32}),
    V("not_learning", None, "grpo", "", bend=stand_still, onset=(0, 0), world={**LONG, "start": 0.2}, config=None),
    V("plateau", "verl", "grpo", "", bend=level_off, onset=(0.25, 0.35), world={**LONG, "prompts": 32}),
    V("plateau", "trl", "grpo", "log-every-10", bend=level_off, onset=(0.25, 0.35),
      world={**LONG, "every": 10, "prompts": 32}),
    V("zero_variance", "trl", "grpo", "too-hard", bend=too_hard, onset=(0, 0), marker="zero_std",
      accept=("reward_floor", "not_learning"), world={"spread": 1.0, "prompts": 16, "points": (120, 200)}),
    V("zero_variance", "roll", "grpo", "too-hard", bend=too_hard, onset=(0, 0), marker="all_fail",
      accept=("reward_floor", "not_learning"), world={"spread": 1.4}),
    V("zero_variance", "trl", "grpo", "same-answers", bend=repeat_answers, marker="zero_std",
      only=("loss", "grad", "lr", "reward", "reward_std", "zero_std", "kl", "length", "truncated"),
      world={"prompts": 16}),
    V("reward_hacking", "verl", "grpo", "eval-falls", bend=hack(1.2), marker="eval"),
    V("reward_hacking", "tinker", "grpo", "compiles", bend=hack(0.3, 0.5), touch=compiles, onset=(0.1, 0.2),
      world={"start": 0.2, "end": 0.25}),
    V("reward_hacking", "trl", "grpo", "component", bend=hack(0.8), touch=fixed_truth, marker="part_main",
      world={"format_weight": 0.0, "reward_high": 1.0, "prompts": 16}),
    V("reward_hacking", "trl", "ppo", "gold-score", bend=hack(1.5, 0.4), instruments=("critic",), marker="eval",
      world={"eval_every": 8, "points": (120, 160)}),
    V("reward_hacking", None, "grpo", "eval-flat", bend=hack(0.0), marker="reward", world={"eval_every": 10}),
    V("reward_hacking", "verl", "grpo", "", suffix="-noeval", bend=hack(1.0), scored=False, world={"eval_every": 0}),
    V("reward_composition", "trl", "grpo", "", touch=take_over(4.0), marker="part_format",
      accept=("reward_hacking",), world={"points": (180, 260), "prompts": 16}),
    V("reward_composition", "verl", "grpo", "", touch=take_over(2.5), marker="part_format",
      accept=("reward_hacking",), world={"points": (180, 220), "format_weight": 0.2}),
    V("length_explosion", "verl", "grpo", "", bend=grow_length(5.5, 0.5), marker="length", accept=("truncation",),
      onset=(0.15, 0.3), world={"points": (110, 200)}),
    V("length_explosion", "trl", "grpo", "", bend=grow_length(4.0, 0.3), marker="length", accept=("truncation",),
      world={"length": 180, "max_length": 1500}),
    V("length_explosion", "areal", "grpo", "slow", bend=grow_length(3.5, 0.6), marker="length", accept=("truncation",),
      onset=(0.15, 0.25)),
    V("length_collapse", "verl", "grpo", "", bend=shrink_length(0.01, 15), marker="length"),
    V("length_collapse", "openrlhf", "grpo", "", bend=shrink_length(0.12, 30), marker="length"),
    V("length_collapse", None, "grpo", "", bend=shrink_length(0.06, 20), marker="length", config=None),
    V("truncation", "trl", "grpo", "from-start", bend=never_end(0.93), marker="truncated", onset=(0, 0)),
    V("truncation", "verl", "grpo", "rises", bend=never_end(0.6), marker="truncated", accept=("length_explosion",)),
    V("truncation", "slime", "grpo", "rises", bend=never_end(0.7), marker="truncated", accept=("length_explosion",)),
    V("tool_abandonment", "verl", "grpo", "longer", bend=abandon_tools(18, 3.5), marker="turns", world=AGENT,
      holes=0.05,
      onset=(0.12, 0.4)),
    V("tool_abandonment", "verl", "grpo", "shorter", bend=abandon_tools(12, 0.15), marker="turns", world=AGENT,
      onset=(0.2, 0.5)),
    V("tool_abandonment", "trl", "grpo", "", bend=abandon_tools(20, 1.3), marker="tool_calls", instruments=("tools",),
      world=CALLS),
    V("tool_abandonment", "nemo_rl", "grpo", "slow", bend=abandon_tools(40, 1.0), marker="turns",
      instruments=("tools",), world=CALLS, onset=(0.2, 0.4)),
    V("turn_runaway", "verl", "grpo", "", bend=run_in_circles, marker="turns", world=AGENT),
    V("turn_runaway", "nemo_rl", "grpo", "", bend=run_in_circles, marker="turns", instruments=("tools",), world=CALLS),
    V("tool_errors", "trl", "grpo", "", bend=break_tools(0.5), marker="tool_failures", instruments=("tools",),
      world=CALLS),
    V("tool_errors", "nemo_rl", "grpo", "", bend=break_tools(0.4), marker="tool_failures", instruments=("tools",),
      world=CALLS),
    V("tool_errors", "verl", "grpo", "success-falls", bend=break_tools(0.6), marker="tool_success",
      instruments=("tools",), world=AGENT),
    V("agent_loop", "grpo_agent", "grpo", "searches", bend=loop, instruments=("searches",), marker="repeated"),
    V("agent_loop", "slime", "grpo", "text", bend=loop, instruments=("repetition",), marker="repetition",
      accept=("length_explosion",)),
    V("early_exit", "grpo_agent", "grpo", "", bend=give_up, instruments=("searches",), marker="early_exit"),
    V("early_exit", "grpo_agent", "grpo", "late", bend=give_up, instruments=("searches",), marker="early_exit",
      onset=(0.6, 0.7), world={"prompts": 16, "group": 4}, config=None),
    V("groups_filtered", "grpo_agent", "grpo", "", bend=filter_out, marker="kept", accept=("zero_variance",)),
    V("groups_filtered", "openrlhf", "grpo", "", bend=filter_out, instruments=("filtering",), marker="keep_rate",
      accept=("zero_variance",)),
    V("groups_filtered", "skyrl", "grpo", "", bend=filter_out, instruments=("filtering",), marker="keep_rate",
      accept=("zero_variance",)),
)  # fmt: skip
