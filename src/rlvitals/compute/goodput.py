"""Goodput: the tokens trained on per GPU second of a step, and why the other tokens were not trained on.

>>> seen = stats(trained_tokens=600, seconds=10.0, gpus=4, generated_tokens=1000, wasted={"filtered": 300})
>>> seen["perf.goodput"].number, seen["perf.waste"].number, seen["perf.waste.filtered"].number
(15.0, 0.4, 0.3)
"""

from __future__ import annotations

from collections.abc import Mapping

from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.values import Derived, Value, total

CAUSES = ("filtered", "stale", "failed", "masked")
"""Why a generated token is not trained on: its group was dropped, its sample was too old, its rollout failed, or a mask
excluded it from the loss."""


def stats(
    *,
    trained_tokens: float,
    seconds: float,
    gpus: int = 1,
    generated_tokens: float | None = None,
    wasted: Mapping[str, float] | None = None,
    idle_seconds: float | None = None,
) -> dict[str, Value | Derived]:
    """The goodput of a step as mergeable numbers: tokens and GPU seconds of steps or ranks are added before dividing.

    `gpus` counts all GPUs of the run, including those that generate. `wasted` maps causes (`CAUSES`) to generated
    tokens. `idle_seconds` is the time that GPUs waited, summed over all GPUs.
    """
    if unknown := set(wasted or ()) - set(CAUSES):
        cause = sorted(unknown)[0]
        raise ConfigError(f"unknown cause {cause!r}.{did_you_mean(cause, CAUSES)} Known: {', '.join(CAUSES)}")
    if wasted and generated_tokens is None:
        raise ConfigError("wasted tokens are a share of generated_tokens: give those too")
    capacity = total([seconds * gpus])
    found: dict[str, Value | Derived] = {"perf.goodput": Derived((total([trained_tokens]), capacity), _quotient)}
    if generated_tokens is not None:
        generated = total([generated_tokens])
        lost = total([generated_tokens - trained_tokens])
        found["perf.waste"] = Derived((lost, generated), _quotient)
        for cause, tokens in (wasted or {}).items():
            found[f"perf.waste.{cause}"] = Derived((total([tokens]), generated), _quotient)
    if idle_seconds is not None:
        found["perf.idle_fraction"] = Derived((total([idle_seconds]), capacity), _quotient)
    return found


def _quotient(above: Value, below: Value) -> float | None:
    divisor = below.mean * below.count
    return above.mean * above.count / divisor if divisor else None
