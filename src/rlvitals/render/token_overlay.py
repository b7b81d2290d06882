"""A rollout as text, with each token coloured by a number, and a legend. Without colours, a small digit after a token
stands for its colour. The scales are those of the dashboard (`parts/overlays.js`).

Texts come from a model: control characters are made visible.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.text import Text

from rlvitals.records import Rollout, TokenTrace
from rlvitals.terminal import visible

OVERLAYS = ("probability", "entropy", "gap", "mask", "advantage", "version")

_RISING = ("", "on #d0e4f0 #1c1e21", "on #8fc1de #1c1e21", "on #3d8fc4 #ffffff", "on #004f7c #ffffff")
_ABOVE = ("on #d0e4f0 #1c1e21", "on #8fc1de #1c1e21", "on #005f95 #ffffff")
_BELOW = ("on #fbe0cb #1c1e21", "on #f0a873 #1c1e21", "on #a84a00 #ffffff")
_MASKED = "dim strike"
_DIGITS = "₀₁₂₃₄₅₆₇₈₉"


class ScaleStep(NamedTuple):
    """A step of a scale: its style, its mark for output without colours, and its meaning."""

    style: str
    mark: str
    meaning: str


_OUTSIDE = ScaleStep("", "", "")


class TokenScale(NamedTuple):
    """An overlay of one rollout."""

    about: str
    steps: tuple[ScaleStep, ...]
    at: Callable[[int], int | None]
    """Returns the index of a token's step, or None if the token has no number."""


def scale_of(rollout: Rollout, overlay: str) -> TokenScale | None:
    """The scale that colours the tokens for an overlay; None if its numbers were not recorded."""
    trace = rollout.trace
    if trace is None:
        return None
    own = trace.logprobs or trace.new_logprobs
    known = own or trace.engine_logprobs
    match overlay:
        case "probability" if known:
            words = ("90 % or more", "50 to 90 %", "10 to 50 %", "1 to 10 %", "below 1 %")
            return TokenScale(
                f"probability of the token under the {'trainer' if own else 'engine'}",
                _rising(words),
                _written(trace, lambda at: bisect_left((-0.9, -0.5, -0.1, -0.01), -math.exp(known[at]))),
            )
        case "entropy" if entropies := trace.entropies:
            words = ("below 0.1", "0.1 to 0.5", "0.5 to 1", "1 to 2", "2 nats or more")
            levels = (0.1, 0.5, 1.0, 2.0)
            return TokenScale(
                "entropy in nats", _rising(words), _written(trace, lambda at: bisect_left(levels, entropies[at]))
            )
        case "gap" if own and (engine := trace.engine_logprobs):
            bounds = (0.02, 0.1, 0.5)
            about = "log-prob of the trainer less that of the engine, in nats"
            return TokenScale(
                about, _turning(bounds), _written(trace, lambda at: _around(own[at] - engine[at], bounds))
            )
        case "mask" if trained := trace.trained:
            both = (ScaleStep(_RISING[1], "", "trained"), ScaleStep(_MASKED, " ⟦⟧", "masked"))
            return TokenScale("what the loss takes", both, lambda at: 0 if trained[at] else 1)
        case "advantage" if advantages := trace.advantages:
            sizes = (0.005, 0.5, 1.5)
            return TokenScale("advantage", _turning(sizes), _written(trace, lambda at: _around(advantages[at], sizes)))
        case "version" if trace.versions or rollout.policy_version is not None:
            versions = trace.versions or (rollout.policy_version or 0,) * trace.length
            newest = sorted(set(versions), reverse=True)
            steps = _rising([f"{version}" for version in newest[: len(_RISING)]])
            return TokenScale(
                "step of the weights", steps, lambda at: min(newest.index(versions[at]), len(_RISING) - 1)
            )
    return None


def token_transcript(rollout: Rollout, overlay: str, *, marks: bool) -> Text | None:
    """The tokens turn by turn with a legend; None if there is nothing to show. With `marks`, digits and brackets stand
    for the colours.
    """
    trace, scale = rollout.trace, scale_of(rollout, overlay)
    if trace is None or scale is None:
        return None
    text = Text(f"    {scale.about}: ")
    for number, step in enumerate(scale.steps):
        text.append(", " if number else "")
        text.append(f" {visible(step.meaning)}{step.mark if marks else ''} ", step.style)
    if trace.trained and overlay != "mask":
        text.append("; " + ("⟦masked⟧" if marks else ""))
        text.append("" if marks else " masked ", _MASKED)
    turn, is_masked = None, False
    for at in range(trace.length):
        is_new = bool(trace.turns) and trace.turns[at] != turn
        was_masked, is_masked = is_masked, bool(trace.trained) and not trace.trained[at]
        if marks and was_masked and (is_new or not is_masked):
            text.append("⟧")
        if is_new:
            turn = trace.turns[at]
            text.append(f"\n    turn {turn + 1}\n      ")
        elif at == 0:
            text.append("\n      ")
        if marks and is_masked and (is_new or not was_masked):
            text.append("⟦")
        place = scale.at(at)
        step = scale.steps[place] if place is not None else _OUTSIDE
        text.append(seen(trace, at), _MASKED if is_masked and place is None else step.style)
        text.append(step.mark if marks and not is_masked else "")
        if trace.texts and trace.texts[at].endswith("\n"):
            text.append("\n      ")
    return text.append("⟧") if marks and is_masked else text


def seen(trace: TokenTrace, at: int) -> str:
    r"""A token's text with invisible characters made visible; its id if texts were not recorded.

    >>> seen(TokenTrace(texts=("a\n",)), 0), seen(TokenTrace(ids=(7,)), 0), seen(TokenTrace(texts=("",)), 0)
    ('a↵', '⟨7⟩', '·')
    """
    if not trace.texts:
        return f"⟨{trace.ids[at] if trace.ids else '?'}⟩"
    text = trace.texts[at].replace("\n", "↵").replace("\t", "⇥")
    return visible(text) or "·"


def _written(trace: TokenTrace, step: Callable[[int], int]) -> Callable[[int], int | None]:
    """Restrict a scale to tokens that are in the loss, since the numbers of other tokens have no meaning."""

    def at(place: int) -> int | None:
        return None if trace.trained and not trace.trained[place] else step(place)

    return at


def _rising(words: Sequence[str]) -> tuple[ScaleStep, ...]:
    return tuple(
        ScaleStep(_RISING[number], _DIGITS[number] if number else "", word) for number, word in enumerate(words)
    )


def _turning(bounds: tuple[float, float, float]) -> tuple[ScaleStep, ...]:
    least, middle, most = bounds

    def side(sign: str, styles: Sequence[str], mark: str) -> list[ScaleStep]:
        words = (f"{sign}{least} to {sign}{middle}", f"{sign}{middle} to {sign}{most}", f"beyond {sign}{most}")
        return [
            ScaleStep(style, f"{mark}{_DIGITS[number]}", word)
            for number, (style, word) in enumerate(zip(styles, words, strict=True), 1)
        ]

    return (*side("-", _BELOW, "₋")[::-1], ScaleStep("", "", f"within {least}"), *side("+", _ABOVE, "₊"))


def _around(value: float, bounds: Sequence[float]) -> int:
    """The index of a value's step among the steps of `_turning`.

    >>> [_around(value, (0.02, 0.1, 0.5)) for value in (-1.0, 0.0, 0.05)]
    [0, 3, 4]
    """
    if math.isnan(value):
        return len(bounds)
    reached = bisect_left(bounds, abs(value))
    return len(bounds) + (-reached if value < 0 else reached)
