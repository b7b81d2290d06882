"""The names under which a family's statistics are returned: the catalogue's ids, or a framework's names.

The catalogue decides. A framework's name is used if it means the same quantity; sign and scale are converted. A name
that means another quantity (probabilities instead of log-probabilities, a count instead of a share) is not used. A
metric that the framework does not name keeps its id. Names never change how a number is averaged: `aggregation` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from rlvitals.catalog.entries import OTHER_QUANTITIES, Alias, Caveat
from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.values import Kind

CANONICAL = "canonical"

_OTHER_QUANTITY = OTHER_QUANTITIES | {"space", "per_sequence"}
"""Kinds of caveat with which a framework's name means another quantity than ours."""

_OWN_NAMES: dict[str, dict[str, str]] = {
    # For frameworks that log several variants of a concept, or whose document and code spell a name differently.
    "roll": {
        "policy.ratio_outside": "actor/ppo_ratio_clipfrac",
        "policy.ratio_outside.upper": "actor/ppo_ratio_high_clipfrac",
        "policy.ratio_outside.lower": "actor/ppo_ratio_low_clipfrac",
        "value.collected.mean": "critic/value",
        "value.predicted.mean": "critic/vpred",
        "value.clip_fraction": "critic/clipfrac",
        "mismatch.prob_abs_diff.mean": "actor/train_infer_diff_token_mean",
        "sft.loss": "actor/sft_loss",
        "sft.loss.positive": "actor/positive_sft_loss",
        "sft.loss.negative": "actor/negative_sft_loss",
        **{
            f"length.{part}.{end}": f"tokens/{part}_length/{end}"
            for part in ("response", "prompt")
            for end in ("mean", "max", "min")
        },
    },
    "verl": {
        "value.predicted.mean": "critic/vpred_mean",
        **{f"mismatch.prob_abs_diff.{end}": f"training/rollout_probs_diff_{end}" for end in ("mean", "max", "std")},
    },
    "rlaif": {
        f"rewards/{component}/weight": f"Scoring/{component}"
        for component in ("Correctness", "CodeQuality", "Efficiency", "Documentation")
    },
    "trl_dpo": {"pref.preference_loss": "loss"},
    "trl_kto": {"pref.preference_loss": "loss"},
}

_OWN_KINDS: dict[str, dict[str, Kind]] = {"rlaif": {"reward.total.std": "std"}}
"""Metrics for which a framework logs another kind of number than we do: this standard deviation divides by n."""

TRAINERS = {
    "policy": ("trl_grpo", "trl_ppo"),
    "advantage": ("trl_grpo", "trl_ppo"),
    "rollout": ("trl_grpo",),
    "dpo": ("trl_dpo",),
    "kto": ("trl_kto",),
}
"""The trainers whose names `names="trl"` uses, by family. TRL's trainers differ: `kl` alone has three meanings."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name to log under, and the conversion from our number to the named one: scale * ours + shift."""

    text: str
    scale: float = 1.0
    shift: float = 0.0
    is_own: bool = True
    """False if the framework has no name for the metric and the id is kept."""
    kind: Kind | None = None
    """The kind of number that the name means, if it differs from ours."""


@dataclass(frozen=True, slots=True)
class FamilyNames:
    """Names for the ids of one family."""

    names: Mapping[str, Name]

    def name(self, metric: str) -> Name:
        return self.names.get(metric) or Name(metric, is_own=False)


def naming(names: str, family: str) -> FamilyNames:
    """The names of a family: "canonical", or those of a framework or document in the catalogue.

    >>> naming("roll", "policy").name("policy.kl_old.k1")
    Name(text='actor/policykl', scale=-1.0, shift=0.0, is_own=True, kind=None)
    >>> naming("canonical", "policy").name("policy.kl_old.k1").text
    'policy.kl_old.k1'
    """
    if names == CANONICAL:
        return FamilyNames({})
    return _framework_naming(names, family)


@cache
def _framework_naming(names: str, family: str) -> FamilyNames:
    from rlvitals import catalog

    known = {framework.id: framework for framework in catalog.frameworks()}
    if names not in known:
        raise ConfigError(
            f"unknown names {names!r}.{did_you_mean(names, [CANONICAL, *known])} Known: {CANONICAL}, {', '.join(known)}"
        )
    frameworks = [
        trainer
        for framework in (names, *known[names].inherits)
        for trainer in (TRAINERS[family] if framework == "trl" else (framework,))
    ]
    found: dict[str, Name] = {}
    for framework in frameworks:
        own = {metric: Name(text) for metric, text in _OWN_NAMES.get(framework, {}).items()}
        found = {**own, **found}
        taken = {name.text for name in found.values()}
        for metric in catalog.metrics():
            usable = [alias for alias in metric.names if alias.framework == framework and _is_usable(alias)]
            free = [alias for alias in usable if alias.name not in taken]
            if free and metric.id not in found:
                kind = _OWN_KINDS.get(framework, {}).get(metric.id)
                found[metric.id] = replace(_converting(free[0]), kind=kind)
                taken.add(free[0].name)
    return FamilyNames(found)


def _is_usable(alias: Alias) -> bool:
    is_other = alias.caveat is not None and alias.caveat.kind in _OTHER_QUANTITY
    return not (alias.when or "{" in alias.name or is_other)


def _converting(alias: Alias) -> Name:
    caveat = alias.caveat or Caveat("scope")
    if caveat.kind == "complement":
        return Name(alias.name, -1.0, 1.0)
    return Name(alias.name, 1.0 / caveat.factor if caveat.is_convertible and caveat.factor else 1.0)
