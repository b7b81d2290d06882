"""How reliable a judge or verifier is: agreement with gold labels, order flips, unparsed replies, appeals.

>>> seen = stats(verdicts=[True, True, False, None], gold=[True, False, False, True])
>>> round(seen["judge.gold_agreement"].number, 3), seen["judge.parse_failure_fraction"].number
(0.667, 0.25)
>>> stats(scores=[0.9, 0.2, 0.9], gold=[True, True, False])["judge.gold_separation"].number
0.25
>>> stats(preferred=["a", "b"], preferred_swapped=["b", "b"])["judge.order_flip_fraction"].number
0.5
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlvitals import values
from rlvitals.errors import ConfigError
from rlvitals.values import Value

PREFERENCES = ("a", "b", "tie")


def stats(
    *,
    verdicts: Sequence[bool | None] | None = None,
    scores: Sequence[float | None] | None = None,
    gold: Sequence[bool] | None = None,
    preferred: Sequence[str | None] | None = None,
    preferred_swapped: Sequence[str | None] | None = None,
    appeals: Sequence[bool | None] | None = None,
) -> dict[str, Value]:
    """The judge's quality as mergeable values, for the arguments that are given. None is a reply without a verdict.

    `verdicts` are whether the judge accepts each answer, `scores` are the judge's scores, `gold` is whether each answer
    is right. `preferred` is the better answer of each pair ("a", "b" or "tie") with a shown first, `preferred_swapped`
    that of the same pair with b shown first. `appeals` are whether a second check accepts each rejected answer, None
    for an answer without a second check.
    """
    found: dict[str, Value] = {}
    if verdicts is not None:
        found["judge.parse_failure_fraction"] = _share(verdict is None for verdict in verdicts)
    if gold is not None and (verdicts is not None or scores is None):
        found |= _against_gold(verdicts, gold)
    if scores is not None:
        found |= _ranked(scores, gold)
    if preferred is not None or preferred_swapped is not None:
        found |= _in_both_orders(preferred, preferred_swapped)
    if appeals is not None:
        found["verifier.false_negative_fraction"] = _share(bool(one) for one in appeals if one is not None)
    return found


def _against_gold(verdicts: Sequence[bool | None] | None, gold: Sequence[bool]) -> dict[str, Value]:
    if verdicts is None or len(verdicts) != len(gold):
        raise ConfigError(f"{len(gold)} gold labels need as many verdicts")
    read = [(bool(verdict), bool(right)) for verdict, right in zip(verdicts, gold, strict=True) if verdict is not None]
    return {
        "judge.gold_agreement": _share(verdict == right for verdict, right in read),
        "judge.false_positive_fraction": _share(verdict for verdict, right in read if not right),
        "judge.false_negative_fraction": _share(not verdict for verdict, right in read if right),
    }


def _ranked(scores: Sequence[float | None], gold: Sequence[bool] | None) -> dict[str, Value]:
    """Compare all pairs of a right and a wrong answer of this batch; a batch without such a pair does not count."""
    if gold is None or len(scores) != len(gold):
        raise ConfigError(f"{len(scores)} scores need as many gold labels")
    right, wrong = (
        [score for score, label in zip(scores, gold, strict=True) if score is not None and bool(label) is wanted]
        for wanted in (True, False)
    )
    pairs = [(one > other) + 0.5 * (one == other) for one in right for other in wrong]
    return {"judge.gold_separation": values.mean(pairs)}


def _in_both_orders(one: Sequence[str | None] | None, other: Sequence[str | None] | None) -> dict[str, Value]:
    if one is None or other is None or len(one) != len(other):
        raise ConfigError("preferred and preferred_swapped are the verdicts on the same pairs, one for each in both")
    if strange := {verdict for verdict in (*one, *other) if verdict is not None} - set(PREFERENCES):
        raise ConfigError(f"a preference is 'a', 'b' or 'tie', not {sorted(map(str, strange))[0]!r}")
    pairs = [
        (verdict, again) for verdict, again in zip(one, other, strict=True) if verdict is not None and again is not None
    ]
    firsts = [verdict == shown for pair in pairs for verdict, shown in zip(pair, "ab", strict=True) if verdict != "tie"]
    return {
        "judge.order_flip_fraction": _share(verdict != again for verdict, again in pairs),
        "judge.first_position_share": _share(firsts),
    }


def _share(holds: Iterable[bool]) -> Value:
    return values.mean([float(one) for one in holds])
