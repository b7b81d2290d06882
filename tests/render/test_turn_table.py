"""The table of turn advantages, line by line."""

from __future__ import annotations

from rlvitals.records import Group, Rollout, Turn
from rlvitals.render.turn_table import turn_table


def group_of(*rows):
    return Group(rollouts=tuple(Rollout(turns=tuple(Turn(advantage=cell) for cell in row)) for row in rows))


DOCUMENT = group_of((0.35, 0.42, 0.8, 1.2), (-0.2, -0.15, 0.3, 0.85), (0.15, 0.25, -0.3, -0.45))


def test_the_documents_example_is_printed_as_the_document_shows_it():
    rule = "─" * 80
    assert turn_table(DOCUMENT).split("\n") == [
        rule,
        "Turn-by-Turn Advantage Table:",
        rule,
        "Rollout | Turn  1 | Turn  2 | Turn  3 | Turn  4 |",
        rule,
        "    1  | +0.350 | +0.420 | +0.800 | +1.200 |",
        "    2  | -0.200 | -0.150 | +0.300 | +0.850 |",
        "    3  | +0.150 | +0.250 | -0.300 | -0.450 |",
        rule,
    ]


def test_the_lines_are_in_the_document_itself(shared):
    text = (shared / "reference" / "grpo-agent-logs.zh.md").read_text(errors="replace")
    for line in turn_table(DOCUMENT).split("\n"):
        assert line in text


def test_a_rollout_that_had_ended_has_dashes():
    lines = turn_table(group_of((0.1,), (0.2, 0.3, 0.4))).split("\n")
    assert lines[5] == "    1  | +0.100 |  ---   |  ---   |"
    assert lines[6] == "    2  | +0.200 | +0.300 | +0.400 |"


def test_turns_without_an_advantage_have_dashes_too():
    assert "    1  |  ---   |" in turn_table(group_of((None,)))


def test_a_wide_table_goes_on_below_itself():
    lines = turn_table(group_of([0.1] * 12, [0.2] * 3), width=80).split("\n")
    headers = [line for line in lines if line.startswith("Rollout")]
    assert headers == [
        "Rollout |" + "".join(f" Turn {turn:2d} |" for turn in range(1, 8)),
        "Rollout |" + "".join(f" Turn {turn:2d} |" for turn in range(8, 13)),
    ]
    assert max(map(len, lines)) <= 80
    assert "    2  |" + "  ---   |" * 5 in lines


def test_a_narrow_screen_shows_a_turn_at_a_time():
    lines = turn_table(group_of([0.1, 0.2]), width=10).split("\n")
    assert [line for line in lines if line.startswith("Rollout")] == ["Rollout | Turn  1 |", "Rollout | Turn  2 |"]


def test_a_group_without_turns_says_so():
    assert "no turns" in turn_table(Group())
