"""Preference training: implicit rewards, margins, accuracies and losses of DPO (pairs) and KTO (single completions).

Log-probs are those of whole completions (sums over their tokens), one number each. Arrays [completions, tokens] with a
mask are summed first. In KTO, chosen means desirable and rejected means undesirable, and the two classes may differ in
size: each is averaged over its own completions, and the averages are merged by class counts.

>>> references = {"ref_chosen_logprobs": [-2.0], "ref_rejected_logprobs": [-3.0]}
>>> dpo = stats(chosen_logprobs=[-1.0], rejected_logprobs=[-3.0], **references)
>>> dpo["pref.reward.margin"].number, dpo["pref.accuracy"].number
(0.1, 1.0)
"""

from __future__ import annotations

from rlvitals.compute import used_by_step
from rlvitals.compute.arrays import Array, gather, library, log_sigmoid, real, row_sum, sigmoid
from rlvitals.compute.names import naming
from rlvitals.compute.packing import Packed, StatisticSheet, reading
from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.values import Value

LOSSES = ("sigmoid", "ipo", "kto")


def reward(logprobs: Array, ref_logprobs: Array, beta: float = 0.1) -> Array:
    """The implicit reward of a completion: beta * (logp - logp_ref).

    >>> reward([-1.0], [-3.0], beta=0.5)
    array([1.])
    """
    return beta * (real(logprobs) - real(ref_logprobs, logprobs))


def dpo_loss(margins: Array, label_smoothing: float = 0.0) -> Array:
    """-log sigmoid(margin) of each pair, where margin = reward_chosen - reward_rejected; ln 2 before the first update.

    >>> dpo_loss([0.0]).round(4)
    array([0.6931])
    """
    m = real(margins)
    return -(1.0 - label_smoothing) * log_sigmoid(m) - label_smoothing * log_sigmoid(-m)


def ipo_loss(margins: Array, beta: float = 0.1) -> Array:
    """(margin / beta - 1 / (2 beta))^2 of each pair. IPO's log-probs are means over tokens, not sums.

    >>> ipo_loss([0.5], beta=0.5)
    array([0.])
    """
    return (real(margins) / beta - 1.0 / (2.0 * beta)) ** 2


def kto_kl(logprobs: Array, ref_logprobs: Array) -> Array:
    """KTO's reference point z: mean of (logp - logp_ref) over mismatched prompt and completion pairs, at least 0.

    >>> kto_kl([-3.0, -2.0], [-1.0, -2.0])
    np.float64(0.0)
    """
    mean = (real(logprobs) - real(ref_logprobs, logprobs)).mean()
    return library(mean).clip(mean, 0.0, None)


def kto_loss(rewards: Array, desirable: Array, kl: Array = 0.0, *, beta: float = 0.1, desirable_weight: float = 1.0,
             undesirable_weight: float = 1.0) -> Array:  # fmt: skip
    """KTO's loss of each completion: w_D (1 - sigmoid(r - beta z)) if desirable, w_U (1 - sigmoid(beta z - r)) if not.

    >>> kto_loss([0.0, 0.0], [True, False])
    array([0.5, 0.5])
    """
    r = real(rewards)
    wanted = real(desirable, r) > 0
    gap = r - beta * real(kl, r)
    return library(r).where(
        wanted, desirable_weight * sigmoid(-gap), undesirable_weight * sigmoid(gap)
    )  # 1 - sigmoid(x) is sigmoid(-x), exactly


def pack(
    *,
    chosen_logprobs: Array = None,
    rejected_logprobs: Array = None,
    ref_chosen_logprobs: Array = None,
    ref_rejected_logprobs: Array = None,
    logprobs: Array = None,
    ref_logprobs: Array = None,
    desirable: Array = None,
    kl_logprobs: Array = None,
    ref_kl_logprobs: Array = None,
    kl: Array = None,
    chosen_mask: Array = None,
    rejected_mask: Array = None,
    mask: Array = None,
    kl_mask: Array = None,
    loss: str | None = None,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    ties: float = 0.0,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
    names: str = "canonical",
) -> Packed:
    """Compute the statistics of a batch: pairs for DPO and IPO, or for KTO `logprobs` with a boolean `desirable` for
    each. `stats` returns them as mergeable values.

    `loss` is "sigmoid", "ipo" or "kto"; the default is "sigmoid" for pairs and "kto" for labelled completions. `ties`
    is the accuracy of a pair with equal rewards (all pairs tie before the first update; TRL counts 0). KTO's z is `kl`
    if the trainer has it (over all ranks), else the estimate from this call's mismatched pairs `kl_logprobs`. `merge`
    pools these pairs over the micro-batches and ranks of a step; `merge_steps` averages the z of steps.
    """
    kind = loss or ("sigmoid" if logprobs is None else "kto")
    if kind not in LOSSES:
        raise ConfigError(f"unknown loss {kind!r}.{did_you_mean(kind, LOSSES)} Known: {', '.join(LOSSES)}")
    sheet = StatisticSheet(naming(names, "kto" if kind == "kto" else "dpo"))
    sides = [
        (chosen_logprobs, ref_chosen_logprobs, chosen_mask),
        (rejected_logprobs, ref_rejected_logprobs, rejected_mask),
    ]
    if kind != "kto":
        margin = _show_pairs(sheet, _sequences(*sides[0]), _sequences(*sides[1]), beta, ties)
        losses = dpo_loss(margin, label_smoothing) if kind == "sigmoid" else ipo_loss(margin, beta)
        sheet.moments(losses, mean="pref.preference_loss")
        return sheet.pack()
    if logprobs is None:
        logprobs, ref_logprobs, desirable = _joined(*(_sequences(*side) for side in sides))
    lp, ref = _sequences(logprobs, ref_logprobs, mask)
    wanted = _labels(desirable, lp)
    r = reward(lp, ref, beta)
    chosen = _show_class(sheet, r, lp, wanted, "chosen")
    rejected = _show_class(sheet, r, lp, 1.0 - wanted, "rejected")
    sheet.derive("pref.reward.margin", _gap, chosen, rejected)
    z = _show_kl(sheet, kl, kl_logprobs, ref_kl_logprobs, kl_mask)
    if z is not None:
        weights = {"desirable_weight": desirable_weight, "undesirable_weight": undesirable_weight}
        sheet.moments(kto_loss(r, wanted, z, beta=beta, **weights), mean="pref.preference_loss")
    return sheet.pack()


stats = reading(pack)
"""The statistics as mergeable values; the arguments are those of `pack`."""


def _sequences(logprobs: Array, ref_logprobs: Array, mask: Array) -> tuple[Array, Array]:
    """Policy and reference log-probs of whole completions."""
    if logprobs is None or ref_logprobs is None:
        raise ConfigError(
            "preference statistics need the policy's and the reference's log-probs of the same completions"
        )
    lp, ref, kept = gather(logprobs, ref_logprobs, mask)
    if lp.shape != ref.shape:
        raise ConfigError(f"the policy's log-probs are {tuple(lp.shape)}, the reference's {tuple(ref.shape)}")
    if lp.ndim == 2:
        kept = library(lp).ones_like(lp) if kept is None else kept
        return row_sum(lp, kept), row_sum(ref, kept)
    return lp, ref


def _joined(chosen: tuple[Array, Array], rejected: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    """Join two separate classes into completions with labels."""
    xp = library(chosen[0])
    lp, ref = (xp.concatenate([one, other]) for one, other in zip(chosen, rejected, strict=True))
    return lp, ref, xp.concatenate([xp.ones_like(chosen[0]), xp.zeros_like(rejected[0])])


def _show_pairs(
    sheet: StatisticSheet, chosen: tuple[Array, Array], rejected: tuple[Array, Array], beta: float, ties: float
) -> Array:
    """Show rewards, margins and accuracy of pairs; return the margins."""
    if len(chosen[0]) != len(rejected[0]):
        raise ConfigError(f"{len(chosen[0])} chosen came with {len(rejected[0])} rejected; pairs need as many of both")
    won, lost = reward(*chosen, beta), reward(*rejected, beta)
    _show_class(sheet, won, chosen[0], None, "chosen")
    _show_class(sheet, lost, rejected[0], None, "rejected")
    margin = won - lost
    sheet.moments(margin, mean="pref.reward.margin")
    sheet.moments(real(margin > 0) + ties * (margin == 0), mean="pref.accuracy")
    return margin


def _labels(desirable: Array, like: Array) -> Array:
    if desirable is None or len(desirable) != len(like):
        raise ConfigError(f"desirable must say true or false for each of the {len(like)} completions")
    return real(real(desirable, like) > 0)


def _show_kl(sheet: StatisticSheet, kl: Array, logprobs: Array, ref_logprobs: Array, mask: Array) -> Array:
    """Show KTO's KL if it is given or can be estimated, and return the z for the loss."""
    if kl is not None:
        sheet.moments(gather(kl)[0].reshape(-1), mean="kl_ref.kto")
        return kl
    if logprobs is None:
        return None
    lp, ref = _sequences(logprobs, ref_logprobs, mask)
    sheet.derive("kl_ref.kto", _at_least_zero, sheet.moments(lp - ref))
    return kto_kl(lp, ref) if len(lp) else None


def _show_class(sheet: StatisticSheet, rewards: Array, logprobs: Array, share: Array, side: str) -> int:
    sheet.moments(logprobs, share, mean=f"pref.logp.{side}")
    return sheet.moments(rewards, share, mean=f"pref.reward.{side}")


def _gap(chosen: Value, rejected: Value) -> float:
    return chosen.mean - rejected.mean


@used_by_step
def _at_least_zero(difference: Value) -> float:
    return max(difference.mean, 0.0)
