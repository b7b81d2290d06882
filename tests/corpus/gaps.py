"""Runs in which the sampling engine and the trainer disagree for one of six causes, and runs in which they agree.

A small policy is sampled: tables of logits that training moves a little at every step. Engine and trainer each score
every token with their own weights, numerics, routes, context and temperature. Every logged number is computed from the
two log-probs of the sampled tokens. No cause has a prescribed signature: it results from the simulation.

Each framework has its own names and logs only some of the numbers. A run also has the usual metrics of a healthy
training (`latent`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from corpus.build import draw, settings_of
from corpus.habits import HABITS
from corpus.labelled import LabelledRun
from corpus.latent import Series, World, curves_of, observe
from corpus.names import KEYS, family, plain
from corpus.noise import Array, ar1, generator, wobble
from rlvitals.records import Group, Rollout, TokenTrace

CONTEXTS, WORDS, TOKENS = 700, 16, 2400
LENGTH, TURN = 75, 15
"""Tokens of a rollout, and of one of its turns."""

FARTHEST = 40.0
"""How many times farther than usual an update may move a context."""

GAP_KEYS: dict[str, dict[str, str]] = {
    "trl": {
        "gap": "sampling/sampling_logp_difference/mean", "gap_max": "sampling/sampling_logp_difference/max",
        "weight": "sampling/importance_sampling_ratio/mean", "weight_min": "sampling/importance_sampling_ratio/min",
        "weight_max": "sampling/importance_sampling_ratio/max", "aux_loss": "aux_loss",
        "age": "sample/staleness_mean", "age_max": "sample/staleness_max",
    },
    "verl": {
        "k1": "rollout_corr/kl", "k3": "rollout_corr/k3_kl", "chi2": "rollout_corr/chi2_token",
        "weight": "rollout_corr/rollout_is_mean", "weight_max": "rollout_corr/rollout_is_max",
        "weight_min": "rollout_corr/rollout_is_min", "ess": "rollout_corr/rollout_is_eff_sample_size",
        "prob_gap": "training/rollout_probs_diff_mean", "prob_gap_max": "training/rollout_probs_diff_max",
        "pearson": "training/rollout_actor_probs_pearson_corr", "changed": "checkpoint_engine/changed_ratio",
        "age": "training/off_policy/trajectory_staleness/mean", "max_vio": "rollout/moe/max_vio/avg",
        "turns": "num_turns/mean",
    },
    "prime_rl": {
        "k3": "mismatch_kl/all/mean", "k3_max": "mismatch_kl/all/max", "outside": "is_masked/mean",
        "age": "off_policy/mean", "age_max": "off_policy/max", "max_vio": "max_vio/mean",
    },
    "slime": {
        "gap": "train/train_rollout_logprob_abs_diff", "weight": "train/tis", "deviation": "train/tis_abs",
        "outside": "train/tis_clipfrac", "changed": "perf/update_weights_density",
    },
    "openrlhf": {"k1": "train/vllm_kl", "outside": "train/is_filter_ratio", "aux_loss": "train/aux_loss"},
    "nemo_rl": {
        "k3": "train/gen_kl_error", "error": "train/token_mult_prob_error", "weight": "train/sampling_importance_ratio",
        "changed_percent": "refit/delta/changed_pct", "verified_percent": "refit/delta_verify/mismatch_pct",
        "age": "train/avg_trajectory_age", "fallback": "train/r3/routed_experts_fallback_token_route_fraction",
    },
    "skyrl": {
        "gap": "policy/rollout_train_logprobs_abs_diff_mean", "gap_max": "policy/rollout_train_logprobs_abs_diff_max",
        "gap_std": "policy/rollout_train_logprobs_abs_diff_std", "weight": "policy/loss_metrics/is_ratio_mean",
        "weight_max": "policy/loss_metrics/is_ratio_max", "age": "async/staleness_mean",
    },
    "None": {
        "k1": "mismatch.kl.k1", "k3": "mismatch.kl.k3", "gap": "mismatch.logp_abs_diff.mean",
        "gap_max": "mismatch.logp_abs_diff.max", "gap_std": "mismatch.logp_abs_diff.std",
        "weight": "mismatch.is_weight.mean", "weight_min": "mismatch.is_weight.min",
        "weight_max": "mismatch.is_weight.max", "extreme": "mismatch.extreme_ratio_fraction", "chi2":
        "mismatch.chi2.token", "changed": "sync.changed_fraction", "fresh": "sync.gap.mean", "age": "staleness.mean",
        "routes": "moe.routing_mismatch", "max_vio": "moe.max_violation", "turns": "agent.turns.mean",
    },
}  # fmt: skip
"""Each framework's names for the numbers about the gap."""

EXPERT_KEYS = frozenset({"aux_loss", "max_vio", "fallback", "routes"})
AGE_KEYS = frozenset({"age", "age_max", "fresh"})


@dataclass(frozen=True)
class Trouble:
    """One way for engine and trainer to disagree, or to agree as they should."""

    name: str
    cause: str
    framework: str
    points: tuple[int, int] = (40, 90)
    onset: tuple[int, int] | None = None
    """The range of points in which it starts; None for the first point."""
    drift: tuple[float, float] = (0.012, 0.04)
    """How far an update moves a logit."""
    uneven: float = 1.0
    """How unevenly updates are spread over the contexts: a policy that learns fast moves a few of them very far, and
    single tokens become almost impossible within a few steps."""
    floor: tuple[float, float] = (0.0005, 0.02)
    """Numerical noise that every pair has: hardly any where engine and trainer run the same code."""
    synced: float = 1.0
    """The share of the change that a sync delivers after the onset; 1 for a sync that works."""
    numerics: tuple[float, float] = (0.0, 0.0)
    """Noise of the engine's logits beyond the floor."""
    creeping: bool = False
    """Whether that noise grows as the policy sharpens."""
    ages: tuple[float, float] = (0.0, 0.0)
    """The mean age of samples in versions, before and after the onset."""
    ramp: float = 15.0
    """The number of points over which the age changes from the first to the second."""
    lagging: bool = False
    """Whether a dead sync shows in the ages, because the engine reports the version that it really has."""
    flipped: tuple[float, float] = (0.0, 0.0)
    """The share of tokens that the engine routes to other experts."""
    torn: tuple[float, float] = (0.0, 0.0)
    """The share of tokens that the trainer sees in another context than the engine."""
    temperature: tuple[float, float] = (1.0, 1.0)
    """The engine samples at this temperature. The trainer uses it as well, unless the temperature is the cause."""
    raw: bool = False
    """Whether the engine reports log-probs at temperature 1, whatever temperature it samples with."""
    experts: bool = False
    agent: bool = False
    without: tuple[str, ...] = ()
    """The framework's numbers that this run does not log."""
    config: Mapping[str, Any] = field(default_factory=dict)
    told_temperature: bool = True
    """Whether its settings name the temperature."""


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


class Policy:
    """Tables of logits that move: the weights of step t are the logits of step t. An update moves few contexts far and
    most of them little, because the rewards of a batch concern few of them.
    """

    def __init__(self, rng: np.random.Generator, points: int, drift: float, uneven: float) -> None:
        sharpness = np.minimum(np.exp(rng.normal(1.4, 0.8, CONTEXTS)), 7.0)[:, None]
        self.start = rng.normal(0, 1, (CONTEXTS, WORDS)) * sharpness
        touched = np.minimum(np.exp(rng.normal(-0.5, uneven, (CONTEXTS, 1))), FARTHEST)
        self.ways = rng.normal(0, 1, (3, CONTEXTS, WORDS)) * touched
        pace = drift * wobble(rng, points + 1, 0.2)
        self.path = np.concatenate([[0.0], np.cumsum(pace)])
        """The distance along the main direction after each step."""
        self.side = 0.5 * drift * np.cumsum(rng.normal(0, 1, (points + 2, 2)), axis=0)
        self._tables: dict[int, Array] = {}

    def table(self, step: int) -> Array:
        if step not in self._tables:
            aside = self.side[step, 0] * self.ways[1] + self.side[step, 1] * self.ways[2]
            self._tables[step] = self.start + self.path[step] * self.ways[0] + aside
        return self._tables[step]

    def logits(self, step: Any, contexts: Array) -> Array:
        """The logits in these contexts, with the weights of one step or of one step per context."""
        if np.ndim(step) == 0:
            return np.asarray(self.table(int(step))[contexts])
        found = np.empty((len(contexts), WORDS))
        for each in np.unique(step):
            found[step == each] = self.table(int(each))[contexts[step == each]]
        return found


class Tokens(NamedTuple):
    """The tokens of one step, rollout after rollout: the log-probs of trainer and engine, and the ages."""

    train: Array
    rollout: Array
    age: Array


class Pair:
    """An engine and a trainer of one policy, and the trouble between them."""

    def __init__(self, trouble: Trouble, rng: np.random.Generator, points: int, at: int, heat: float) -> None:
        self.trouble, self.rng, self.points, self.at, self.heat = trouble, rng, points, at, heat
        drift, self.floor, self.noise, self.flipped, self.torn = (
            float(draw(rng, pair, "")) if pair[0] > 0 else 0.0
            for pair in (trouble.drift, trouble.floor, trouble.numerics, trouble.flipped, trouble.torn)
        )
        self.policy = Policy(rng, points, drift, trouble.uneven)
        self.ages = age_course(trouble, rng, points, at)

    def step(self, step: int) -> Tokens:
        """Sample one step's tokens with the engine and score them with the trainer."""
        trouble, rng, policy, at = self.trouble, self.rng, self.policy, self.at
        is_off = step >= at
        contexts = rng.integers(0, CONTEXTS, TOKENS)
        age = np.repeat(rng.poisson(self.ages[step], TOKENS // LENGTH), LENGTH)
        mine = policy.logits(step, contexts)
        theirs = policy.logits(np.maximum(step - age, 0), contexts)
        if trouble.synced < 1 and is_off:
            stuck = policy.logits(max(at - 1, 0), contexts)
            theirs = stuck + trouble.synced * (theirs - stuck)
        rough = np.exp(rng.normal(0, 0.6, (TOKENS, 1)))  # rounding differs from token to token
        theirs = theirs + self.floor * rough * rng.standard_t(4, theirs.shape) / 1.7
        if self.noise and is_off:
            grown = 0.12 + 0.88 * ((step - at) / max(self.points - at, 1)) ** 1.5 if trouble.creeping else 1.0
            theirs = theirs + self.noise * grown * rng.standard_t(8, theirs.shape) / 1.15
        if trouble.experts:
            share = self.flipped * (0.6 + 0.8 * step / self.points) if self.flipped and is_off else 0.001
            other = rng.random(TOKENS) < share
            theirs = theirs + np.where(other[:, None], rng.normal(0, 1.2, theirs.shape), 0.0)
        if self.torn and is_off:
            is_first = np.arange(TOKENS) % TURN == 0  # mostly at the first token of a turn, where texts are joined
            wrong = rng.random(TOKENS) < self.torn * np.where(is_first, 0.73 * TURN, 0.27)
            mine = np.where(wrong[:, None], policy.logits(step, rng.permutation(contexts)), mine)
        sampled = _log_softmax(theirs / self.heat)
        reported = _log_softmax(theirs) if trouble.raw else sampled
        is_right = trouble.raw or trouble.cause != "temperature"
        scored = _log_softmax(mine / self.heat) if is_right else _log_softmax(mine)
        taken = np.arange(TOKENS), (sampled + rng.gumbel(size=sampled.shape)).argmax(-1)
        lag = step - at + 1 if trouble.lagging and is_off else 0
        return Tokens(scored[taken], reported[taken], age + lag)


def simulate(trouble: Trouble, rng: np.random.Generator, points: int, at: int, heat: float) -> Series:
    """The numbers about the gap, one value per point, under canonical names."""
    pair = Pair(trouble, rng, points, at, heat)
    rows: list[dict[str, float]] = []
    for step in range(points):
        is_off = step >= at
        tokens = pair.step(step)
        flipped = pair.flipped if is_off else 0.0
        rows.append(numbers(*tokens))
        rows[-1] |= {
            "changed": 0.14 * float(wobble(rng, 1, 0.15)[0]) * (trouble.synced if is_off else 1.0),
            "verified": (1 - trouble.synced) * 0.2 if is_off else 0.0,
            "age": float(tokens.age.mean()), "age_max": float(tokens.age.max()),
            "routes": (flipped or 0.002) * float(wobble(rng, 1, 0.1)[0]), "fallback": 0.3 * (flipped > 0),
            "max_vio": 0.8 * float(wobble(rng, 1, 0.08)[0]), "aux_loss": 1.02 * float(wobble(rng, 1, 0.004)[0]),
            "turns": 5.0 * float(wobble(rng, 1, 0.04)[0]),
        }  # fmt: skip
    out = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return out | {"changed_percent": 100 * out["changed"], "verified_percent": 100 * out["verified"]}


def traced(trouble: Trouble, seed: int, points: int = 60, every: int = 4) -> Iterator[list[Group]]:
    """The rollouts of every few steps, token by token, as a trainer would record them. Versions are recorded where
    samples have ages.
    """
    rng = generator(seed, f"traced {trouble.name} {trouble.framework}")
    heat = heat_of(trouble, rng)
    at = int(rng.integers(*trouble.onset)) if trouble.onset else 0
    pair = Pair(trouble, rng, points, at, heat)
    for step in range(0, points, every):
        tokens = pair.step(step)
        rollouts = []
        for start in range(0, TOKENS, LENGTH):
            size = int(rng.integers(LENGTH // 2, LENGTH + 1))
            part = slice(start, start + size)
            trace = TokenTrace(
                turns=tuple(place // TURN for place in range(size)),
                trained=(True,) * size,
                logprobs=tuple(tokens.train[part].tolist()),
                engine_logprobs=tuple(tokens.rollout[part].tolist()),
                versions=tuple((step + 1 - tokens.age[part]).tolist()) if any(trouble.ages) else (),
            )
            rollouts.append(Rollout(reward=float(rng.random()), trace=trace))
        groups = [rollouts[i : i + 8] for i in range(0, len(rollouts), 8)]
        yield [Group(id=str(i), step=step + 1, rollouts=tuple(group)) for i, group in enumerate(groups)]


def age_course(trouble: Trouble, rng: np.random.Generator, points: int, at: int) -> Array:
    """The mean age of the samples at each point: it builds up over a few steps and fluctuates."""
    before, after = trouble.ages
    steps = np.arange(points)
    level = before * (1 - np.exp(-(steps + 0.5) / 3)) + (after - before) * np.clip(
        (steps - at + 1) / trouble.ramp, 0, 1
    )
    return np.clip(level * (1 + 0.12 * ar1(rng, points, 0.5)), 0, None)


def numbers(train: Array, rollout: Array, age: Array) -> dict[str, float]:
    """The statistics of one step's tokens."""
    apart = train - rollout
    weight, p, q = np.exp(apart), np.exp(train), np.exp(rollout)
    fresh = np.abs(apart)[age == 0]
    return {
        "k1": float(-apart.mean()), "k3": float((weight - 1 - apart).mean()), "gap": float(np.abs(apart).mean()),
        "k3_max": float((weight - 1 - apart).max()), "gap_max": float(np.abs(apart).max()),
        "gap_std": float(np.abs(apart).std()), "weight": float(weight.mean()), "weight_min": float(weight.min()),
        "weight_max": float(weight.max()), "deviation": float(np.abs(weight - 1).mean()),
        "ess": float(weight.sum() ** 2 / (len(weight) * (weight**2).sum())), "chi2": float((weight**2).mean() - 1),
        "prob_gap": float(np.abs(p - q).mean()), "prob_gap_max": float(np.abs(p - q).max()),
        "pearson": float(np.corrcoef(p, q)[0, 1]), "error": float(np.exp(np.abs(apart)).mean()),
        "extreme": float((np.abs(apart) > np.log(2)).mean()), "outside": float((weight > 2).mean()),
        "fresh": float(fresh.mean()) if len(fresh) else float("nan"),
    }  # fmt: skip


def make_gap(trouble: Trouble, seed: int) -> LabelledRun:
    """The run with this trouble and seed."""
    rng = generator(seed, f"gap {trouble.name} {trouble.framework}")
    framework = None if trouble.framework == "None" else trouble.framework
    where = family(framework, "grpo")
    points = int(rng.integers(*trouble.points))
    drawn = {name: draw(rng, value, name) for name, value in HABITS[where].items()} | {"points": points}
    at = int(rng.integers(*trouble.onset)) if trouble.onset else 0
    world = World(**drawn)
    usual = observe(world, curves_of(world, rng), rng)
    heat = heat_of(trouble, rng)
    found = simulate(trouble, rng, points, at, heat)
    keys = {name: key for name, key in GAP_KEYS[trouble.framework].items() if is_logged(name, trouble)}
    common = {name: key for name, key in KEYS[where].items() if name in usual and not name.startswith("eval")}
    rows = []
    for i in range(points):
        row: dict[str, Any] = {"step": i + 1}
        row |= {key: plain(usual[name][i], name, False) for name, key in common.items()}
        row |= {key: plain(found[name][i], name, False) for name, key in keys.items() if np.isfinite(found[name][i])}
        rows.append(row)
    config = settings_of(world) | dict(trouble.config)
    if trouble.told_temperature:
        config["temperature"] = round(heat, 2)
    return LabelledRun(
        name=f"gap_{trouble.name}_{trouble.framework}-{seed}",
        kind="logprob_mismatch" if trouble.cause else None,
        accept=frozenset({"logprob_mismatch", "staleness", "ratio_off"}) if trouble.cause else frozenset(),
        onset=at if trouble.cause else None,
        algorithm="grpo",
        framework=framework,
        total_steps=points,
        config=config,
        rows=rows,
        cause=trouble.cause,
    )


def heat_of(trouble: Trouble, rng: np.random.Generator) -> float:
    """The temperature that a run samples with. A third of the runs with other causes use one below 1."""
    is_other = trouble.cause != "temperature" and rng.random() < 0.35
    return float(draw(rng, (0.6, 1.0) if is_other else trouble.temperature, ""))


def is_logged(name: str, trouble: Trouble) -> bool:
    """Whether this run logs the number with this canonical name."""
    if name in trouble.without or (name in EXPERT_KEYS and not trouble.experts):
        return False
    return not (
        (name in AGE_KEYS and not (any(trouble.ages) or trouble.lagging)) or (name == "turns" and not trouble.agent)
    )


T = Trouble
_SYNC = T("dead-sync", "weight_sync", "trl", onset=(8, 30), synced=0.0)
_STALE = T("stale", "stale_samples", "prime_rl", onset=(8, 30), ages=(1.0, 11.0), points=(60, 90), drift=(0.015, 0.04))
_FP8 = T("low-precision", "numerics", "verl", numerics=(0.45, 0.8))
_ROUTES = T("routes", "expert_routing", "verl", flipped=(0.06, 0.2), experts=True)
_TORN = T("other-tokens", "tokenization", "trl", torn=(0.025, 0.07), agent=True)
_HEAT = T("temperature", "temperature", "trl", temperature=(0.45, 0.7))

TROUBLES: tuple[Trouble, ...] = (
    _SYNC,
    replace(_SYNC, framework="verl"),
    replace(_SYNC, framework="verl", name="dead-sync-seen", without=("changed",), ages=(1.5, 1.5)),
    replace(_SYNC, framework="slime"),
    replace(_SYNC, framework="None", without=("fresh",)),
    replace(_SYNC, framework="nemo_rl", without=("verified_percent",)),
    replace(_SYNC, framework="openrlhf"),
    replace(_SYNC, framework="prime_rl", ages=(1.0, 1.0)),
    replace(_SYNC, framework="verl", name="lagging-sync", lagging=True, without=("changed",)),
    replace(_SYNC, framework="skyrl", name="lagging-sync", lagging=True),
    replace(_SYNC, framework="nemo_rl", name="part-sync", synced=0.5),
    replace(_SYNC, framework="None", name="part-sync", synced=0.4),
    replace(_SYNC, framework="slime", name="part-sync", synced=0.4),
    _STALE,
    replace(_STALE, framework="verl"),
    replace(_STALE, framework="nemo_rl"),
    replace(_STALE, framework="skyrl"),
    replace(_STALE, framework="None"),
    replace(_STALE, framework="trl"),
    *(
        replace(_STALE, framework=name, name="stale-fast", uneven=2.2, ages=(0.1, 8.0), drift=(0.01, 0.03), ramp=ramp)
        for name, ramp in (("trl", 15.0), ("None", 5.0), ("skyrl", 5.0), ("verl", 15.0))
    ),
    *(replace(_STALE, framework=name, name="stale-at-once", ages=(0.3, 9.0), ramp=4.0) for name in ("trl", "nemo_rl")),
    *(
        replace(_SYNC, framework=name, name="dead-sync-told-fresh", ages=(0.02, 0.02), uneven=uneven)
        for name, uneven in (("trl", 1.0), ("None", 2.2), ("verl", 1.0), ("skyrl", 2.2))
    ),
    *(
        replace(_SYNC, framework=name, name="dead-sync-fast", uneven=2.2, drift=(0.01, 0.03))
        for name in ("trl", "None", "skyrl", "nemo_rl")
    ),
    _FP8,
    replace(_FP8, framework="trl", config={"vllm_quantization": "fp8"}),
    replace(_FP8, framework="slime"),
    replace(_FP8, framework="nemo_rl", config={"precision": "fp8"}),
    replace(_FP8, framework="skyrl"),
    replace(_FP8, framework="None"),
    replace(_FP8, framework="prime_rl", ages=(1.0, 1.0), config={"kv_cache_dtype": "fp8"}),
    replace(_FP8, framework="None", name="low-precision-async", ages=(2.5, 2.5)),
    replace(_FP8, framework="trl", name="low-precision-aging", ages=(0.0, 6.0)),
    replace(_FP8, framework="None", name="low-precision-fresh", ages=(0.02, 0.02)),
    replace(_FP8, framework="verl", name="creeping", numerics=(0.7, 1.1), creeping=True),
    replace(_FP8, framework="None", name="creeping", numerics=(0.7, 1.1), creeping=True, experts=True),
    _ROUTES,
    replace(_ROUTES, framework="trl"),
    replace(_ROUTES, framework="None"),
    replace(_ROUTES, framework="nemo_rl"),
    replace(_ROUTES, framework="prime_rl", ages=(1.0, 1.0)),
    replace(_ROUTES, framework="None", name="routes-later", onset=(10, 30)),
    _TORN,
    replace(_TORN, framework="verl"),
    replace(_TORN, framework="skyrl"),
    replace(_TORN, framework="None"),
    replace(_TORN, framework="None", name="other-tokens-later", onset=(10, 30)),
    replace(_TORN, framework="slime"),
    replace(_TORN, framework="nemo_rl"),
    *(replace(_TORN, framework=name, name="other-tokens-async", ages=(2.5, 2.5)) for name in ("trl", "None", "skyrl")),
    replace(_TORN, framework="None", name="other-tokens-later-async", onset=(10, 30), ages=(0.3, 4.0)),
    *(replace(_TORN, framework=name, name="other-tokens-aging", ages=(0.0, 6.0)) for name in ("trl", "None", "skyrl")),
    replace(_TORN, framework="trl", name="other-tokens-fresh", ages=(0.02, 0.02)),
    _HEAT,
    replace(_HEAT, framework="verl"),
    replace(_HEAT, framework="skyrl"),
    replace(_HEAT, framework="None"),
    replace(_HEAT, framework="slime"),
    replace(_HEAT, framework="None", name="temperature-aging", ages=(0.0, 6.0)),
    replace(_HEAT, framework="trl", name="temperature-fresh", ages=(0.02, 0.02)),
    replace(_HEAT, framework="trl", name="hot", temperature=(1.4, 1.8)),
    replace(_HEAT, framework="None", name="hot", temperature=(1.4, 1.8)),
    replace(_HEAT, framework="verl", name="raw-temperature", raw=True),
    replace(_HEAT, framework="None", name="raw-temperature", raw=True, told_temperature=False),
    replace(_HEAT, framework="trl", name="raw-temperature", raw=True),
)
"""Runs whose cause can be inferred from what they log."""

UNTELLABLE: tuple[Trouble, ...] = (
    replace(_FP8, framework="openrlhf", name="untold-numerics"),
    replace(_HEAT, framework="openrlhf", name="untold-temperature", told_temperature=False),
    replace(_TORN, framework="openrlhf", name="untold-tokens"),
    replace(_STALE, framework="slime", name="untold-age"),
    replace(_STALE, framework="openrlhf", name="untold-age"),
)
"""Runs that log too little to name a cause: a single KL that is high and constant has several explanations, and so has
a growing gap where the age of the samples is not logged."""

EARLY: tuple[Trouble, ...] = tuple(
    replace(one, name=f"early-{one.name}", onset=(2, 3), points=(20, 30))
    for one in TROUBLES if one.name in ("dead-sync", "dead-sync-seen", "lagging-sync")
)  # fmt: skip
"""A sync that dies at step 3: the rollouts of step 3 are sampled with the weights of step 2."""

_FINE = T("fine", "", "trl")
HEALTHY: tuple[Trouble, ...] = (
    *(replace(_FINE, framework=name) for name in GAP_KEYS),
    *(replace(_FINE, framework=name, name="fine-async", ages=(1.2, 1.2)) for name in ("verl", "prime_rl", "skyrl")),
    *(replace(_FINE, framework=name, name="fine-async", ages=(2.5, 2.5), drift=(0.006, 0.012))
      for name in ("nemo_rl", "None", "trl")),
    replace(_FINE, framework="trl", name="fine-async-untold", ages=(1.2, 1.2), without=("age", "age_max")),
    replace(_FINE, framework="openrlhf", name="fine-async-untold", ages=(1.2, 1.2)),
    replace(_FINE, framework="openrlhf", name="fine-fp8", numerics=(0.03, 0.05), config={"quantization": "fp8"}),
    *(replace(_FINE, framework=name, name="fine-experts", experts=True) for name in ("verl", "None", "nemo_rl", "trl")),
    *(replace(_FINE, framework=name, name="fine-agent", agent=True) for name in ("verl", "None", "trl", "nemo_rl")),
    replace(_FINE, framework="trl", name="fine-cool", temperature=(0.6, 0.9)),
    replace(_FINE, framework="trl", name="fine-fp8", numerics=(0.03, 0.05), config={"quantization": "fp8"}),
)  # fmt: skip


def gap_runs(seed: int, which: tuple[Trouble, ...] = TROUBLES) -> list[LabelledRun]:
    """One run of every trouble."""
    return [make_gap(trouble, seed) for trouble in which]
