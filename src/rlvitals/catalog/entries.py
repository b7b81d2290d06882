"""The types of catalogue data: metric, alias, band, framework, algorithm, family and group.

This module owns the closed sets of words below and nothing else: loading is in `source`, look-ups are in `lookup`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Direction = Literal["up", "down", "band", "none"]
"""How it moves in healthy training: up, down, within a range, or without a direction."""

Reduction = Literal["mean", "sum", "min", "max", "std", "var", "median", "quantile", "last", "none"]
"""How the values of one step (micro-batches, ranks) are reduced to one. `none`: a derived number that must be computed
again from its parts."""

Tier = Literal["core", "extended"]

Stage = Literal["any", "start", "early", "mid", "late", "end"]

AlgorithmKind = Literal["online", "preference", "sft", "reward_model", "distillation"]
"""What an algorithm trains on: its own samples, preferences, demonstrations, pairs to score, a teacher."""

Limits = tuple[float | None, float | None]
"""Low and high of a range; None where it is open."""

CaveatKind = Literal[
    "sign",  # multiply by factor
    "scale",  # multiply by factor
    "complement",  # 1 - x
    "scope",  # counts other things
    "aggregation",  # averaged over other units
    "estimator",  # another estimator of the same idea
    "per_sequence",  # summed over the tokens of a sequence
    "count",  # a count where the concept is a share
    "mask",  # padding or masked positions are included
    "space",  # probabilities instead of log-probabilities, or the reverse
    "test",  # counts another condition
    "clamp",  # cut to a range
    "window",  # aggregated over the logging window
    "derived",  # must be computed from several keys
    "statistic",  # another statistic of the same values: an extreme, a spread, a quantile, a sum
    "different",  # a related but different quantity
    "suspect",  # known to be wrong at the source
]

CONVERTIBLE: frozenset[str] = frozenset({"sign", "scale", "complement"})
"""The kinds of caveats that a conversion removes."""

OTHER_QUANTITIES: frozenset[str] = frozenset({"count", "different", "derived", "statistic"})
"""The kinds of caveats for a number that is not the quantity of the concept."""

DIRECTIONS, REDUCTIONS, TIERS, STAGES, KINDS, CAVEATS = (
    get_args(kind) for kind in (Direction, Reduction, Tier, Stage, AlgorithmKind, CaveatKind)
)

DIRECTION_WORDS: dict[str, str] = {
    "up": "higher is better",
    "down": "lower is better",
    "band": "healthy in a range",
    "none": "no direction",
}


@dataclass(frozen=True, slots=True)
class Caveat:
    """How one framework's number differs from the concept."""

    kind: CaveatKind
    note: str = ""
    factor: float | None = None
    """Concept = factor * logged value, for kinds sign and scale."""

    @property
    def is_convertible(self) -> bool:
        return self.kind in CONVERTIBLE

    @property
    def is_other_quantity(self) -> bool:
        return self.kind in OTHER_QUANTITIES

    @property
    def is_misleading(self) -> bool:
        """Whether the number would mislead under the concept's title: it is another quantity or its opposite."""
        return self.is_other_quantity or self.kind in ("space", "suspect", "complement", "sign")

    def to_concept(self, value: float) -> float:
        """Convert a logged value to the concept's own sign, scale and sense.

        >>> Caveat("scale", factor=0.01).to_concept(45.0)
        0.45
        >>> Caveat("complement").to_concept(0.25)
        0.75
        """
        if self.kind == "complement":
            return 1.0 - value
        if self.is_convertible and self.factor is not None:
            return self.factor * value
        raise ValueError(f"a caveat of kind {self.kind!r} does not convert")


@dataclass(frozen=True, slots=True)
class Alias:
    """The name of a metric in one framework or document."""

    framework: str
    name: str
    """The logged key. `{x}` stands for a part that depends on the run, `{x*}` for one that may contain slashes. If x is
    one of `slices.KEYS` (`{env}`, `{source}`), the part is the label of a slice; in `{env|agg}` the word `agg` stands
    for all slices together."""
    when: str = ""
    """The setting under which the key has this meaning, such as `estimator=k2`."""
    caveat: Caveat | None = None
    definition: str = ""
    """How this source computes it, where that matters."""
    trap: str = ""
    """How this source's number can mislead."""


@dataclass(frozen=True, slots=True)
class Band:
    """A typical range with its source and scope. It is information only: rules judge a run, bands do not."""

    low: float | None
    high: float | None
    algorithm: str = "any"
    stage: Stage = "any"
    min_parameters: float | None = None
    """The smallest model it applies to."""
    estimator: str = ""
    """The estimator it applies to, where algorithms compute the number differently."""
    is_typical: bool = True
    """False for a range that is quoted from its source and known not to apply beyond the set-up described there."""
    source: str = ""
    note: str = ""

    @property
    def limits(self) -> Limits:
        return self.low, self.high

    @property
    def scope(self) -> str:
        """What it applies to, as text.

        >>> Band(0, 1e-6, "kto", "mid", min_parameters=1e9).scope
        'kto, mid, from 1e+09 parameters'
        """
        size = "" if self.min_parameters is None else f"from {self.min_parameters:.3g} parameters"
        parts = (self.algorithm, self.stage, size, self.estimator, "" if self.is_typical else "as quoted")
        return ", ".join(part for part in parts if part and part != "any")


@dataclass(frozen=True, slots=True)
class Symptom:
    """One problem: what is seen, what it means, what to do."""

    when: str
    means: str
    do: str


@dataclass(frozen=True, slots=True)
class Metric:
    """One concept of the catalogue."""

    id: str
    family: str
    title: str
    what: str
    unit: str
    direction: Direction
    reduce: Reduction
    formula: str = ""
    estimator: str = ""
    tier: Tier = "extended"
    quantity: str = ""
    """Concepts with the same quantity measure one idea in ways that must not be mixed (KL estimators); defaults to the
    id."""
    bands: tuple[Band, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    notes: str = ""
    names: tuple[Alias, ...] = ()
    is_collective: bool = False
    """Whether it stands for many series of a run, such as the times of various stages; its title does not name them."""


@dataclass(frozen=True, slots=True)
class Family:
    """A chapter of the catalogue: one data file, one docs page."""

    id: str
    title: str
    about: str


@dataclass(frozen=True, slots=True)
class Framework:
    """A source of metric names: a training framework, one of its trainers, or a reference document."""

    id: str
    title: str
    parent: str = ""
    """`trl` for `trl_kto`. The parent stands for all of its children."""
    inherits: tuple[str, ...] = ()
    """Frameworks whose names it also logs."""
    like: str = ""
    """The more common framework to assume where the names alone do not distinguish the two."""
    algorithm: str = ""
    """The algorithm that a trainer implies, if any."""
    source: str = ""
    prefix: str = ""
    """The prefix that its loggers add to the names."""
    slices: Mapping[str, str] = field(default_factory=dict)
    """Sets of names that it logs again for each slice: `env/{env}/*` for `env/all/*`, or `{source}/*` for `*`, which is
    any of its names."""
    is_guessed: bool = True
    """False where it is never recognised from names: its runs name their framework, and some of its names are plain
    words that any log may have."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A training algorithm, and its particular settings in the catalogue."""

    id: str
    title: str
    kind: AlgorithmKind | Literal[""] = ""
    parent: str = ""
    """The algorithm it is a variant of. It inherits the kind, vital signs and estimators that it does not define."""
    aliases: tuple[str, ...] = ()
    """Other spellings, and its names in the settings of frameworks."""
    vitals: tuple[str, ...] = ()
    """Its vital signs, the most telling first: concepts, or groups of them."""
    estimators: Mapping[str, str] = field(default_factory=dict)
    """How it computes a concept, where a band depends on that."""


@dataclass(frozen=True, slots=True)
class MetricGroup:
    """Metrics people look at together, by concept id or by logged name."""

    id: str
    title: str
    metrics: tuple[str, ...]
    about: str = ""
    source: str = ""
