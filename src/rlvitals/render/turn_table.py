"""The table of turn advantages, as in the GRPO agent's document: one row per rollout, one column per turn.

`---` means that the rollout had already ended or that the turn has no advantage. A table wider than the screen is split
into several blocks of turns, one below the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlvitals.records import Group, Rollout

WIDTH = 80
LINE = "─"
TITLE = "Turn-by-Turn Advantage Table:"
_FIRST, _COLUMN = len("Rollout |"), len(" Turn  1 |")


def turn_table(group: Group, width: int = WIDTH) -> str:
    """The table of one group, for a screen of this width.

    >>> from rlvitals.records import Turn
    >>> done = Rollout(turns=(Turn(advantage=0.35), Turn(advantage=-1.2)))
    >>> print(turn_table(Group(rollouts=(done, Rollout(turns=(Turn(advantage=0.1),)))), width=40))
    ────────────────────────────────────────
    Turn-by-Turn Advantage Table:
    ────────────────────────────────────────
    Rollout | Turn  1 | Turn  2 |
    ────────────────────────────────────────
        1  | +0.350 | -1.200 |
        2  | +0.100 |  ---   |
    ────────────────────────────────────────
    """
    rule = LINE * min(width, WIDTH)
    lines = [rule, TITLE, rule]
    for columns in _folds(max((len(rollout.turns) for rollout in group.rollouts), default=0), width):
        lines += ["Rollout |" + "".join(f" Turn {turn + 1:2d} |" for turn in columns), rule]
        lines += [_row(number, rollout, columns) for number, rollout in enumerate(group.rollouts, 1)]
        lines.append(rule)
    if len(lines) == 3:
        lines += ["no turns", rule]
    return "\n".join(lines)


def signed(number: float | None) -> str:
    """An advantage or a reward in the format of the tables.

    >>> signed(0.35), signed(-0.0004), signed(None)
    ('+0.350', '-0.000', '---')
    """
    return "---" if number is None else f"{number:+.3f}"


def _folds(turns: int, width: int) -> Iterator[range]:
    at_once = max(1, (width - _FIRST) // _COLUMN)
    for first in range(0, turns, at_once):
        yield range(first, min(first + at_once, turns))


def _row(number: int, rollout: Rollout, columns: range) -> str:
    cells = [rollout.turns[turn].advantage if turn < len(rollout.turns) else None for turn in columns]
    return f"{number:5d}  |" + "".join(f" {signed(cell):^6} |" for cell in cells)
