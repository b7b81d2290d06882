"""Tokens in the terminal: colours or digits, escaped model text, and the command that shows them."""

from __future__ import annotations

import json

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.records import Group, Rollout, TokenTrace, Turn
from rlvitals.render.token_overlay import OVERLAYS, scale_of, token_transcript

TRACE = TokenTrace(
    ids=(1, 2, 3, 4), texts=("a", " \x1b[2J", "\n", "tool"), turns=(0, 0, 0, 1), trained=(True, True, True, False),
    logprobs=(-0.01, -6.0, -1.0, 0.0), engine_logprobs=(-0.01, -5.0, -1.05, 0.0), entropies=(0.05, 3.0, 0.7, 0.0),
    advantages=(2.0, -1.0, 0.0, 0.0), versions=(5, 4, 5, 5),
)  # fmt: skip
ROLLOUT = Rollout((Turn("a"),), reward=1.0, trace=TRACE)

MARKED = {
    "probability": ["a", " \\x1b[2J₄", "↵₂"],
    "entropy": ["a", " \\x1b[2J₄", "↵₂"],
    "gap": ["a", " \\x1b[2J₋₃", "↵₊₁"],
    "mask": ["a", " \\x1b[2J", "↵"],
    "advantage": ["a₊₃", " \\x1b[2J₋₂", "↵"],
    "version": ["a", " \\x1b[2J₁", "↵"],
}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_without_colours_digits_say_how_strong_a_token_is(overlay):
    text = token_transcript(ROLLOUT, overlay, marks=True).plain
    assert "turn 1\n      " + "".join(MARKED[overlay]) in text
    assert "turn 2\n      ⟦tool⟧" in text
    assert "masked" in text.splitlines()[0]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_with_colours_a_token_has_that_of_its_step_and_the_legend_names_it(overlay):
    drawn = token_transcript(ROLLOUT, overlay, marks=False)
    legend, _, body = drawn.plain.partition("\n")
    styles = {str(span.style) for span in drawn.spans if span.start > len(legend)}
    named = {str(span.style) for span in drawn.spans if span.end <= len(legend)}
    assert styles <= named
    assert styles - {""}
    assert "₄" not in body


def test_what_was_not_recorded_is_not_shown():
    assert scale_of(Rollout(trace=TokenTrace(ids=(1,))), "entropy") is None
    assert scale_of(Rollout(), "mask") is None
    only = Rollout(trace=TokenTrace(ids=(7, 8), trained=(True, False)), policy_version=3)
    assert token_transcript(only, "mask", marks=True).plain.endswith("⟨7⟩⟦⟨8⟩⟧")
    assert "3" in token_transcript(only, "version", marks=True).plain


def test_the_verb_shows_them_and_says_what_is_missing(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run", display="none", monitor=False) as run:
        run.log({"loss": 1.0}, step=1)
        run.log_groups([Group("?", (ROLLOUT, Rollout((Turn("x"),)))), Group("!", (Rollout((Turn("x"),)),))], step=1)
    at = ["rollouts", str(tmp_path / "run"), "--step", "1"]
    assert main([*at, "--group", "1", "--tokens"]) == 0
    printed = capsys.readouterr().out
    assert "probability of the token under the trainer" in printed
    assert "\\x1b[2J₄" in printed
    assert "\x1b" not in printed
    assert main([*at, "--group", "1", "--tokens", "gap"]) == 0
    assert "less that of the engine" in capsys.readouterr().out
    assert main([*at, "--group", "2", "--tokens"]) != 0
    assert "without their tokens" in capsys.readouterr().err
    assert main([*at, "--tokens"]) != 0
    assert "--group" in capsys.readouterr().err
    assert main([*at, "--group", "1", "--json"]) == 0
    trace = json.loads(capsys.readouterr().out)["groups"][0]["rollouts"][0]["trace"]
    assert trace["engine_logprobs"] == [-0.01, -5.0, -1.05, 0.0]
    assert main(["rollouts", str(tmp_path / "run"), "--search", "tool"]) == 0  # the text of a token alone is no hit
    assert "Group" not in capsys.readouterr().out
