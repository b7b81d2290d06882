"""The shapes of catalogue data: what one metric, alias, band, framework, algorithm, family and group is.

Owns the vocabulary (closed sets below) and nothing else: loading is in `source`, look-ups are in `lookup`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Direction = Literal["up", "down", "band", "none"]
"""Where healthy training moves it: up, down, inside a range, or nowhere in particular."""

Reduction = Literal["mean", "sum", "min", "max", "std", "var", "median", "quantile", "last", "none"]
"""How values of one step (micro-batches, ranks) become one. `none`: a derived number that must be computed again from
its parts."""

Tier = Literal["core", "extended"]

Stage = Literal["any", "start", "early", "mid", "late", "end"]

Kind = Literal["online", "preference", "sft", "reward_model", "distillation"]
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
    "mask",  # padding or masked positions take part
    "space",  # probabilities instead of log-probabilities, or the reverse
    "test",  # the condition counted is another one
    "clamp",  # cut to a range
    "window",  # aggregated over the logging window
    "derived",  # must be computed from several keys
    "statistic",  # another statistic of the same values: an extreme, a spread, a quantile, a sum
    "different",  # a related but different quantity
    "suspect",  # known to be wrong at the source
]

CONVERTIBLE: frozenset[str] = frozenset({"sign", "scale", "complement"})
"""The caveats after which two series are the same quantity again."""

OTHER_QUANTITIES: frozenset[str] = frozenset({"count", "different", "derived", "statistic"})
"""The caveats with which a number is not the quantity that the concept names."""

DIRECTIONS, REDUCTIONS, TIERS, STAGES, KINDS, CAVEATS = (
    get_args(kind) for kind in (Direction, Reduction, Tier, Stage, Kind, CaveatKind)
)


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
        """Whether the number would mislead under the concept's title, which means another quantity or sense."""
        return self.is_other_quantity or self.kind in ("space", "suspect", "complement", "sign")

    def to_concept(self, value: float) -> float:
        """Turn a logged value into the concept's own sign, scale and sense.

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
    """What one framework or document calls the metric."""

    framework: str
    name: str
    """The logged key; `{x}` stands for a part that depends on the run, `{x*}` for one that may hold slashes. A key of
    `slices` there (`{env}`, `{source}`) is the label of a slice; `{env|agg}` says what stands there for all of them."""
    when: str = ""
    """The setting under which the key has this meaning, such as `estimator=k2`."""
    caveat: Caveat | None = None
    definition: str = ""
    """How this source computes it, where that is worth saying."""
    trap: str = ""
    """What misleads about this source's number."""


@dataclass(frozen=True, slots=True)
class Band:
    """A typical range with its source, and what it holds for. Information: the doctor judges, not a band."""

    low: float | None
    high: float | None
    algorithm: str = "any"
    stage: Stage = "any"
    min_parameters: float | None = None
    """The smallest model it holds for."""
    estimator: str = ""
    """The way of computing the number that it holds for, where algorithms differ in it."""
    is_typical: bool = True
    """False where it is quoted from its source and known not to hold beyond the set-up described there."""
    source: str = ""
    note: str = ""

    @property
    def limits(self) -> Limits:
        return self.low, self.high

    @property
    def scope(self) -> str:
        """What it holds for, in words.

        >>> Band(0, 1e-6, "kto", "mid", min_parameters=1e9).scope
        'kto, mid, from 1e+09 parameters'
        """
        size = "" if self.min_parameters is None else f"from {self.min_parameters:.3g} parameters"
        parts = (self.algorithm, self.stage, size, self.estimator, "" if self.is_typical else "as quoted")
        return ", ".join(part for part in parts if part and part != "any")


@dataclass(frozen=True, slots=True)
class Symptom:
    """One way of being off: what is seen, what it means, what to do."""

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
    """Concepts with one quantity measure one idea in ways that must not be mixed (KL estimators); defaults to the
    id."""
    bands: tuple[Band, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    notes: str = ""
    names: tuple[Alias, ...] = ()
    is_collective: bool = False
    """Whether it stands for many series of a run, such as the times of various stages: its title tells none of them."""


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
    """`trl` for `trl_kto`: asking for the parent asks for all of its children."""
    inherits: tuple[str, ...] = ()
    """Frameworks whose names it logs too."""
    like: str = ""
    """The commoner framework to assume where the names alone cannot tell the two apart."""
    algorithm: str = ""
    """The algorithm a trainer implies, where it does."""
    source: str = ""
    prefix: str = ""
    """What its loggers put in front of the names."""
    slices: Mapping[str, str] = field(default_factory=dict)
    """Where it logs whole sets of names once more for each slice: `env/{env}/*` for `env/all/*`, or `{source}/*` for
    `*`, which is any of its names."""
    is_guessed: bool = True
    """False where names alone never point to it: its runs say themselves whose they are, and some of its names are bare
    words that any log may have."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A way of training, and what is particular to it."""

    id: str
    title: str
    kind: Kind | Literal[""] = ""
    parent: str = ""
    """The algorithm it is a variant of, and whose kind, vital signs and estimators it has where it names none."""
    aliases: tuple[str, ...] = ()
    """Other spellings, and what frameworks call it in their settings."""
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
