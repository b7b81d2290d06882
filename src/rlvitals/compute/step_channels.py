"""The channels of a step's statistics, and the metrics computed from each.

A channel is one number per token (or per sequence), reduced to its moments [count, mean, M2, min, max]. The order here
is the order of the rows of moments, and the kernels depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from rlvitals.compute.advantage import explained_variance
from rlvitals.compute.mismatch import effective_sample_size
from rlvitals.compute.names import FamilyNames, Name
from rlvitals.compute.packing import Entry
from rlvitals.values import Kind, Value

RowKind = Literal["length", "mean", "exp", "exp_minus", "sum", "used", "rewards", "prompt_lengths"]
"""The number of a sequence: its token count, the mean, exponential of the mean or sum of one of its token channels,
whether it has tokens, or an input with one number per sequence."""

ROW_KINDS: tuple[RowKind, ...] = ("length", "mean", "exp", "exp_minus", "sum", "used", "rewards", "prompt_lengths")


@dataclass(frozen=True, slots=True)
class Channel:
    """One number per token or sequence. `needs` are the inputs and settings that it requires. `collected_values` are
    the old values, or the values if no old ones are given.
    """

    name: str
    needs: tuple[str, ...] = ()
    row: RowKind | None = None
    source: str = ""
    """For sequence channels: the token channel they are computed from."""


TOKEN_CHANNELS = (
    Channel("logp"),
    Channel("logp_old", ("old_logprobs",)),
    Channel("logp_ref", ("ref_logprobs",)),
    Channel("logp_rollout", ("rollout_logprobs",)),
    Channel("log_ratio", ("old_logprobs",)),
    Channel("ratio", ("old_logprobs",)),
    Channel("kl_old_k2", ("old_logprobs",)),
    Channel("kl_old_k3", ("old_logprobs",)),
    Channel("loss", ("old_logprobs", "advantages")),
    Channel("clip_upper", ("old_logprobs", "advantages")),
    Channel("clip_lower", ("old_logprobs", "advantages")),
    Channel("dual_clip", ("old_logprobs", "advantages", "dual_clip")),
    Channel("kl_ref_k1", ("ref_logprobs",)),
    Channel("kl_ref_k2", ("ref_logprobs",)),
    Channel("kl_ref_k3", ("ref_logprobs",)),
    Channel("mismatch_log", ("rollout_logprobs",)),
    Channel("mismatch_k3", ("rollout_logprobs",)),
    Channel("mismatch_weight", ("rollout_logprobs",)),
    Channel("mismatch_abs", ("rollout_logprobs",)),
    Channel("mismatch_prob", ("rollout_logprobs",)),
    Channel("mismatch_factor", ("rollout_logprobs",)),
    Channel("advantage", ("advantages",)),
    Channel("return", ("returns",)),
    Channel("value", ("collected_values",)),
    Channel("residual", ("collected_values", "returns")),
    Channel("value_error", ("values", "returns")),
    Channel("value_loss", ("values", "returns")),
    Channel("value_clip", ("values", "returns", "old_values", "value_clip")),
    Channel("entropy", ("entropy",)),
    Channel("nonfinite"),
    Channel("value_predicted", ("values",)),
    Channel("mismatch_extreme", ("rollout_logprobs",)),
)

ROW_CHANNELS = (
    Channel("length", (), "length"),
    Channel("used", (), "used"),
    Channel("perplexity", (), "exp_minus", "logp"),
    Channel("sequence_logp", (), "sum", "logp"),
    Channel("sequence_ratio", ("old_logprobs",), "exp", "log_ratio"),
    Channel("sequence_clip_upper", ("old_logprobs", "advantages"), "mean", "clip_upper"),
    Channel("sequence_clip_lower", ("old_logprobs", "advantages"), "mean", "clip_lower"),
    Channel("sequence_kl_ref", ("ref_logprobs",), "sum", "kl_ref_k1"),
    Channel("mismatch_ppl_ratio", ("rollout_logprobs",), "exp_minus", "mismatch_log"),
    Channel("mismatch_sequence_log", ("rollout_logprobs",), "mean", "mismatch_log"),
    Channel("perplexity_rollout", ("rollout_logprobs",), "exp_minus", "logp_rollout"),
    Channel("sequence_mean_logp", (), "mean", "logp"),
    Channel("sequence_mean_logp_rollout", ("rollout_logprobs",), "mean", "logp_rollout"),
    Channel("sequence_factor", ("rollout_logprobs",), "mean", "mismatch_factor"),
    Channel("sequence_entropy", ("entropy",), "mean", "entropy"),
    Channel("reward", ("rewards",), "rewards"),
    Channel("prompt_length", ("prompt_lengths",), "prompt_lengths"),
)

CHANNELS = TOKEN_CHANNELS + ROW_CHANNELS
TOKEN_INDEX = {channel.name: index for index, channel in enumerate(TOKEN_CHANNELS)}

FIELDS = 5
"""count, mean, M2, min, max."""


def _numbers(name: str, channel: str, *kinds: Kind) -> dict[str, tuple[str, Kind]]:
    suffix = {"sample_std": "std"}
    return {
        f"{name}.{suffix.get(kind, kind)}": (channel, kind) for kind in kinds or ("mean", "sample_std", "min", "max")
    }


SHOWN: dict[str, tuple[str, Kind]] = {
    **_numbers("policy.logp", "logp"),
    "policy.logp.old.mean": ("logp_old", "mean"),
    "policy.logp.ref.mean": ("logp_ref", "mean"),
    "policy.logp.rollout.mean": ("logp_rollout", "mean"),
    **_numbers("policy.logp.sequence", "sequence_logp", "mean", "min", "max"),
    "policy.perplexity.train": ("perplexity", "mean"),
    "policy.perplexity.rollout": ("perplexity_rollout", "mean"),
    **_numbers("policy.log_ratio", "log_ratio"),
    **_numbers("policy.ratio", "ratio", "mean", "sample_std", "var", "min", "max"),
    **_numbers("policy.ratio.sequence", "sequence_ratio", "mean", "min", "max"),
    "policy.kl_old.k2": ("kl_old_k2", "mean"),
    "policy.kl_old.k3": ("kl_old_k3", "mean"),
    "policy.kl_old.k3.max": ("kl_old_k3", "max"),
    "policy.loss": ("loss", "mean"),
    "policy.clip_fraction.upper": ("clip_upper", "mean"),
    "policy.clip_fraction.upper.max": ("sequence_clip_upper", "max"),
    "policy.clip_fraction.lower": ("clip_lower", "mean"),
    "policy.clip_fraction.lower.min": ("sequence_clip_lower", "min"),
    "policy.dual_clip_fraction": ("dual_clip", "mean"),
    "kl_ref.k1": ("kl_ref_k1", "mean"),
    "kl_ref.k2": ("kl_ref_k2", "mean"),
    "kl_ref.k3": ("kl_ref_k3", "mean"),
    "kl_ref.k3.max": ("kl_ref_k3", "max"),
    **_numbers("kl_ref.sequence", "sequence_kl_ref", "mean", "min", "max"),
    "mismatch.kl.k3": ("mismatch_k3", "mean"),
    **_numbers("mismatch.is_weight", "mismatch_weight", "mean", "std", "min", "max"),
    **_numbers("mismatch.logp_abs_diff", "mismatch_abs", "mean", "std", "max"),
    **_numbers("mismatch.prob_abs_diff", "mismatch_prob", "mean", "max"),
    "mismatch.token_mult_prob_error": ("mismatch_factor", "mean"),
    "mismatch.seq_mult_prob_error.max": ("sequence_factor", "max"),
    "mismatch.ppl_ratio": ("mismatch_ppl_ratio", "mean"),
    "mismatch.extreme_ratio_fraction": ("mismatch_extreme", "mean"),
    **_numbers("advantage", "advantage"),
    **_numbers("return", "return"),
    **_numbers("value", "value"),
    "value.predicted.mean": ("value_predicted", "mean"),
    "value.error": ("value_error", "mean"),
    "value.loss": ("value_loss", "mean"),
    "value.clip_fraction": ("value_clip", "mean"),
    **_numbers("entropy", "entropy"),
    "entropy.sequence.mean": ("sequence_entropy", "mean"),
    **_numbers("length.response", "length", "mean", "std", "min", "max"),
    **_numbers("length.prompt", "prompt_length", "mean", "min", "max"),
    **_numbers("reward.total", "reward"),
    "train.samples.total": ("used", "count"),
    "train.samples.valid": ("used", "sum"),
    "train.samples.valid_fraction": ("used", "mean"),
    "train.tokens": ("logp", "count"),
    "train.tokens.nonfinite": ("nonfinite", "sum"),
}
"""Metric id -> its channel and kind of number. An id has the same meaning as in the families (`policy`, `advantage`,
`rollout`); a test compares each one."""


_MIRRORED: dict[str, tuple[str, Kind]] = {
    "policy.kl_old.k1": ("log_ratio", "mean"),
    "mismatch.kl.k1": ("mismatch_log", "mean"),
    "mismatch.log_ppl_gap.mean": ("mismatch_sequence_log", "mean"),
    "mismatch.log_ppl_gap.max": ("mismatch_sequence_log", "min"),
    "mismatch.log_ppl_gap.min": ("mismatch_sequence_log", "max"),
    "policy.log_perplexity.train": ("sequence_mean_logp", "mean"),
    "policy.log_perplexity.rollout": ("sequence_mean_logp_rollout", "mean"),
}
"""Metrics with the opposite sign of their channel: k1 is minus the log-ratio, and the largest gap is minus the smallest
log-ratio."""


def _half_mean_square(value: Value) -> float:
    return (value.m2 / value.count + value.mean**2) / 2


def _chi_square(weights: Value) -> float:
    return weights.m2 / weights.count + weights.mean**2 - 1.0


def _either(upper: Value, lower: Value) -> float:
    return upper.mean + lower.mean


_DERIVED: dict[str, tuple[Callable[..., float | None], tuple[str, ...]]] = {
    "policy.clip_fraction": (_either, ("clip_upper", "clip_lower")),
    "policy.ratio.effective_sample_size": (effective_sample_size, ("ratio",)),
    "mismatch.effective_sample_size": (effective_sample_size, ("mismatch_weight",)),
    "mismatch.chi2.token": (_chi_square, ("mismatch_weight",)),
    "mismatch.kl.k2": (_half_mean_square, ("mismatch_log",)),
    "value.explained_variance": (explained_variance, ("return", "residual")),
}


def entries(given: Iterable[str], naming: FamilyNames) -> tuple[Entry, ...]:
    """The entries of all channels whose inputs and settings are given, with their names."""
    inputs = set(given)
    if inputs & {"values", "old_values"}:
        inputs.add("collected_values")
    row = {channel.name: index for index, channel in enumerate(CHANNELS) if inputs.issuperset(channel.needs)}
    named = {name: naming.name(name) for name in SHOWN}
    direct = [Entry(named[name], (row[c],), named[name].kind or kind) for name, (c, kind) in SHOWN.items() if c in row]
    mirrored = [
        Entry(_negative(naming.name(name)), (row[c],), kind) for name, (c, kind) in _MIRRORED.items() if c in row
    ]
    derived = [
        Entry(naming.name(name), tuple(row[part] for part in parts), formula=formula)
        for name, (formula, parts) in _DERIVED.items()
        if row.keys() >= set(parts)
    ]
    return (*direct, *mirrored, *derived)


def _negative(name: Name) -> Name:
    return replace(name, scale=-name.scale)
