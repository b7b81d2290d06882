"""Healthy runs that look odd: each has caused a false alarm of a naive monitor on a real log."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from corpus.bends import hold
from corpus.build import Rows, Scene, Variant
from corpus.habits import AGENT
from corpus.latent import Series, ramp, rise
from corpus.noise import drop_some, null_some, spikes


def curriculum(scene: Scene) -> None:
    """Harder data at two points: reward dips by a third and comes back."""
    c, n = scene.curves, scene.n
    for share in (0.35, 0.65):
        at = int(share * n)
        dip = (np.arange(n) >= at) * np.exp(-np.clip(np.arange(n) - at, 0, None) / (0.06 * n))
        c.skill = c.skill - 1.3 * dip


def data_stage(scene: Scene) -> None:
    """Another data set half-way: the levels of reward, length and entropy shift once, learning continues."""
    c, n = scene.curves, scene.n
    new = ramp(n, n // 2, 2)
    c.skill, c.length, c.entropy = c.skill - 0.35 * new, c.length * (1 + 0.35 * new), c.entropy * (1 + 0.2 * new)


def solve(scene: Scene) -> None:
    """Solved by the middle of the run: reward at its maximum, no spread left, short answers."""
    c, n = scene.curves, scene.n
    solved = ramp(n, int(0.2 * n), 0.3 * n)
    c.skill = c.skill + 9 * solved
    c.truth = c.truth + 9 * solved
    c.format = np.minimum(c.format + solved, 1.0)
    c.length = c.length * (1 - 0.8 * solved)
    c.kl = c.kl * (1 + 1.5 * solved)


def one_outlier(scene: Scene, series: Series) -> None:
    """One row with 50 times the KL and 100 times the gradient; the next one is as before."""
    at = int(scene.rng.uniform(0.3, 0.8) * scene.n)
    series["kl"][at] *= 50
    series["loss"][at] += 0.05 * series["kl"][at]
    series["grad"][at] *= 100


def falling_truncation(scene: Scene) -> None:
    """Two thirds of the answers are truncated at first, later only one third."""
    scene.curves.endless = 0.67 * (1 - 0.5 * scene.curves.progress)


def constant_truncation(scene: Scene) -> None:
    scene.curves.endless = np.full(scene.n, 0.25)


def zero_loss(scene: Scene, series: Series) -> None:
    """Strictly on-policy: the loss prints as 0, nothing is clipped."""
    for name in ("loss", "clip", "clip_low", "clip_high"):
        series[name] = np.zeros(scene.n)


def small_gain(scene: Scene) -> None:
    """A steady gain that is too small to show in a window: the mean rises from 0.345 to 0.383."""
    c, n = scene.curves, scene.n
    c.skill = np.linspace(-0.95, -0.72, n)
    c.entropy = np.linspace(0.5, 0.46, n)
    c.kl = np.linspace(0.0003, 0.0007, n)


def flat(scene: Scene) -> None:
    """Too short to show anything: all series flat within their noise."""
    c = scene.curves
    c.skill = np.full(scene.n, c.skill[0])
    c.turns = np.full(scene.n, c.turns[0])
    c.entropy = np.full(scene.n, c.entropy[0])


def growing_scale(scene: Scene) -> None:
    """Returns grow, and the value loss grows with them."""
    c, n = scene.curves, scene.n
    c.skill = c.skill + 1.5 * c.progress
    c.extra["value_loss"] = c.extra["value_loss"] * (1 + 1.6 * ramp(n, 0, n))


def repeat_from(scene: Scene, at: int, back: int) -> None:
    """From point `at` on, the run repeats its course from `back` points before."""
    for item in fields(scene.curves):
        values = getattr(scene.curves, item.name)
        if isinstance(values, np.ndarray):
            setattr(scene.curves, item.name, np.concatenate([values[:at], values[at - back : scene.n - back]]))


def resume(scene: Scene) -> None:
    repeat_from(scene, int(0.55 * scene.n), 12)


def resume_steps(scene: Scene, rows: Rows) -> None:
    """Killed and resumed from a checkpoint: the step goes back once, and some steps appear twice."""
    for row in rows[int(0.55 * scene.n) :]:
        row["step"] -= 12 * scene.world.every


def begin_again(scene: Scene) -> None:
    repeat_from(scene, 20, 20)


def begin_again_steps(scene: Scene, rows: Rows) -> None:
    """The log holds a first attempt of 20 rows and then the run again from step 1."""
    for row in rows[20:]:
        row["step"] -= 20


def rate_ends(scene: Scene) -> None:
    """The learning rate reaches zero a little before the end; nothing moves in the last rows."""
    c, at = scene.curves, int(0.88 * scene.n)
    c.lr = scene.world.lr * np.clip(1 - np.arange(scene.n) / at, 0, None)
    for name in ("skill", "truth", "entropy", "kl", "length"):
        setattr(c, name, hold(getattr(c, name), at))


def gaps(scene: Scene, rows: Rows) -> None:
    """Console lines are cut at rows with an evaluation, other rows lose a few keys, some values are None."""
    for row in rows:
        if any(key.startswith("val-core") for key in row) and row["step"] > 1:
            for key in ("critic/score/mean", "response_length/mean", "response_length/clip_ratio", "num_turns/mean"):
                row.pop(key, None)
    drop_some(scene.rng, rows, ("actor/grad_norm", "timing_s/step"), 0.06)
    null_some(scene.rng, rows, "actor/entropy", 0.04)


def inner_iterations(scene: Scene, rows: Rows) -> None:
    """Four updates on each batch: metrics of the batch are logged only with the first of them."""
    for i, row in enumerate(rows):
        if i % 4:
            for key in [key for key in row if key.startswith(("reward", "completions", "frac"))]:
                del row[key]


def eval_pauses(scene: Scene, rows: Rows) -> None:
    """A checkpoint with an evaluation takes seven minutes every 25 rows; rows have timestamps."""
    now = 1_763_190_000.0
    for i, row in enumerate(rows):
        now += 40 * float(np.exp(0.15 * scene.rng.normal())) + (420 if i % 25 == 24 else 0)
        row["timestamp"] = round(now, 3)


def memory_settles(scene: Scene) -> None:
    """Memory rises at first, as longer batches come, and then stays constant."""
    extra, n = scene.curves.extra, scene.n
    used = 50 + 16 * rise(n, 0, 0.1 * n)
    extra["gpu_memory"], extra["gpu_memory_percent"] = used.round(2), (used / 0.8).round(1)


def larger_batch(scene: Scene, series: Series) -> None:
    """The batch is four times as large in the last third: noise halves, gradients shrink, steps take longer."""
    at = int(0.66 * scene.n)
    for name in ("reward", "kl", "entropy"):
        tail = series[name][at:]
        smooth = np.convolve(np.pad(tail, 2, mode="edge"), np.ones(5) / 5, "valid")
        series[name][at:] = smooth + 0.5 * (tail - smooth)
    series["grad"][at:] *= 0.6
    series["seconds"][at:] *= 1.7


def spiky(scene: Scene, series: Series) -> None:
    """Outliers of the k3 estimator: a few very large KL values, each in a single row."""
    series["kl"] = series["kl"] * spikes(scene.rng, scene.n, 0.02, 20, 400)


def negative_start(scene: Scene, series: Series) -> None:
    """The first margins are below zero by chance."""
    series["margin"][1:6] = -np.abs(series["margin"][1:6]) - 0.01
    series["accuracy"][1:6] = 0.375


def coarse(scene: Scene, rows: Rows) -> None:
    """A logger that prints two digits."""
    for row in rows:
        for key, value in row.items():
            if isinstance(value, float):
                row[key] = float(f"{value:.2g}")


def H(framework: str | None, algorithm: str, tag: str, **rest: object) -> Variant:  # noqa: N802
    return Variant(None, framework, algorithm, tag, onset=(0, 0), **rest)  # type: ignore[arg-type]


SOLO = {"reward_high": 1.0, "format_weight": 0.0}
VARIANTS: tuple[Variant, ...] = (
    H("trl", "grpo", "plain"),
    H("trl", "grpo", "no-settings", config=None, total_known=False),
    H("trl", "grpo", "log-every-10", world={"every": 10, "prompts": 32, "points": (100, 160)}),
    H("trl", "grpo", "log-every-5-eval", world={"every": 5, "prompts": 20, "eval_every": 10}),
    H("trl", "grpo", "small-gain", bend=small_gain, touch=zero_loss,
      world={**SOLO, "every": 5, "points": 200, "prompts": 20, "grad": 0.07, "kl_noise": 0.06, "spread": 1.0}),
    H("trl", "grpo", "g2-hard", world={**SOLO, "group": 2, "prompts": 8, "start": 0.08, "end": 0.35, "points": (200,
      300)}),
    H("trl", "grpo", "one-outlier", touch=one_outlier),
    H("trl", "grpo", "constant-truncation", bend=constant_truncation, world={"points": (180, 220), "start": 0.3,
      "end": 0.6}),
    H("trl", "grpo", "falling-truncation", bend=falling_truncation, world={"max_length": 256, "length": 150}),
    H("trl", "grpo", "low-entropy", world={**SOLO, "entropy": 0.03, "group": 4, "prompts": 2, "length": 58,
      "points": 160,
      "start": 0.25, "end": 0.75}),
    H("trl", "grpo", "inner-iterations", edit=inner_iterations, world={"points": 240, "prompts": 8, "group": 4}),
    H("trl", "grpo", "solved", bend=solve, world={"points": (300, 400), "length": 390, "max_length": 600,
      "prompts": 4}),
    H("trl", "grpo", "solved-g2", bend=solve, world={**SOLO, "reward_high": 22.0, "points": 1000, "group": 2,
      "prompts": 2,
      "length": 390, "max_length": 586, "kl": 0.3, "kl_noise": 0.5}),
    H("trl", "grpo", "late-start", world={"delay": 0.4, "points": (220, 300), "start": 0.12, "end": 0.6}),
    H("trl", "grpo", "curriculum", bend=curriculum, world={"points": (200, 260)}),
    H("trl", "grpo", "larger-batch", touch=larger_batch, world={"points": (160, 220)}),
    H("unsloth", "grpo", "small-batch", config=None, world={"prompts": 1, "group": 6, "points": 250, "start": 0.15,
      "end": 0.75}),
    H("unsloth", "grpo", "spiky", touch=spiky),
    H("unsloth", "grpo", "two-runs-in-one-file", bend=begin_again, edit=begin_again_steps, world={"points": 110}),
    H("trl", "rloo", "plain"),
    H("trl", "ppo", "sequence-kl", instruments=("critic",)),
    H("trl", "ppo", "growing-scale", instruments=("critic",), bend=growing_scale, world={"points": (120, 160)}),
    H("verl", "grpo", "plain"),
    H("verl", "grpo", "agent", world={**AGENT, "points": 180}),
    H("verl", "grpo", "agent-turns-grow", world={**AGENT, "turns_growth": 1.75, "points": (50, 80), "start": 0.2,
      "end": 0.36}),
    H("verl", "grpo", "agent-flat-short", bend=flat, world={**AGENT, "points": (36, 48)}),
    H("verl", "grpo", "length-doubles", world={"growth": 2.1, "start": 0.25, "end": 0.7}),
    H("verl", "grpo", "gaps", edit=gaps, world=AGENT),
    H("verl", "grpo", "resumed", bend=resume, edit=resume_steps),
    H("verl", "grpo", "entropy-rises", world={"entropy_drop": -0.16}),
    H("roll", "grpo", "rate-ends", bend=rate_ends),
    H("verl", "grpo", "data-stage", bend=data_stage, world={"points": (160, 220)}),
    H("verl", "ppo", "critic", instruments=("critic",)),
    H("verl", "grpo", "rollout-correction", instruments=("mismatch", "staleness"), world={"entropy_drop": 0.55}),
    H("openrlhf", "grpo", "plain", instruments=("filtering",)),
    H("openrlhf", "ppo", "critic", instruments=("critic",)),
    H("roll", "grpo", "plain"),
    H("slime", "grpo", "plain", instruments=("repetition",)),
    H("areal", "grpo", "async", instruments=("staleness",)),
    H("skyrl", "grpo", "async", instruments=("staleness", "filtering", "machine")),
    H("nemo_rl", "grpo", "tools", instruments=("tools", "mismatch", "machine"), world={"turns": 6.0}),
    H("prime_rl", "grpo", "async", instruments=("mismatch", "staleness")),
    H(None, "grpo", "bare", config=None, total_known=False, only=("loss", "reward", "kl", "entropy")),
    H(None, "grpo", "short", world={"points": (30, 60)}),
    H(None, "ppo", "two-digits", edit=coarse, world={"points": 150}),
    H(None, "grpo", "eval-pauses", edit=eval_pauses, world={"points": 160, "eval_every": 25}),
    H(None, "grpo", "long", world={"points": 1000, "prompts": 8, "pace": 0.8}),
    H("rlhf_tracker", "ppo", "epochs"),
    H("rlaif", "rlaif", "memory-settles", instruments=("machine",), bend=memory_settles),
    H("grpo_agent", "grpo", "plain", instruments=("searches",)),
    H("trl", "dpo", "plain", world={"eval_every": 15}),
    H("trl", "dpo", "large-margins", world={"margin": 9.0, "spread": 0.7, "points": (140, 180), "beta": 0.3}),
    H("trl", "dpo", "negative-start", touch=negative_start),
    H("unsloth", "dpo", "reference"),
    H("openrlhf", "dpo", "plain"),
    H("trl", "kto", "plain"),
    H("trl", "kto", "log-every-5", world={"every": 5, "pairs": 40, "eval_every": 10}),
    H("kto_guide", "kto", "constant-rate"),
)  # fmt: skip
