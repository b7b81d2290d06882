"""`rlvitals audit-judge` as a user runs it."""

from __future__ import annotations

import json

import pytest

from rlvitals.cli.main import main


def written(tmp_path, rows, name="held.jsonl"):
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def facts(capsys, *words, code=0):
    assert main(["audit-judge", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


ROWS = (
    [{"gold": True, "verdict": "yes"}] * 6
    + [{"gold": False, "verdict": "yes"}]
    + [{"gold": False, "verdict": "no"}] * 3
)


def test_errors_on_a_screen_and_as_json(tmp_path, capsys):
    path = written(tmp_path, ROWS)
    assert main(["audit-judge", path]) == 0
    output = capsys.readouterr().out
    assert "false positives" in output
    assert "25.0%" in output
    found = facts(capsys, path)
    assert found["false_positives"]["share"] == 0.25
    assert (found["kind"], found["items"], found["false_negatives"]["share"]) == ("answers", 10, 0.0)


def test_a_gate_has_its_exit_code(tmp_path, capsys):
    path = written(tmp_path, ROWS)
    facts(capsys, path, "--max-error", "0.3")
    facts(capsys, path, "--max-error", "0.2", code=1)


def test_columns_under_other_names_scores_lengths_and_steps(tmp_path, capsys):
    rows = [{"label": 1, "s": [0.9, 0.2], "text": "abc", "at": 1}, {"label": 0, "s": [0.6, None], "text": "a", "at": 2}]
    path = written(tmp_path, rows)
    words = ["--column", "gold=label", "--column", "score=s", "--column", "answer=text", "--column", "step=at"]
    found = facts(capsys, path, *words, "--threshold", "0.5")
    assert found["verdicts"] == 4
    assert found["unread"]["share"] == 0.25
    assert found["false_positives"]["share"] == 1.0
    assert found["self_agreement"]["share"] == 0.0
    assert [part["first_step"] for part in found["drift"]["bins"]] == [1, 2]


def test_pairs(tmp_path, capsys):
    rows = [{"gold": "A", "preferred": "a", "preferred_swapped": "first", "a": "xx", "b": "x"}] * 3
    rows += [{"gold": "b", "preferred": "a", "preferred_swapped": "b", "a": "xx", "b": "x"}]
    path = written(tmp_path, rows)
    found = facts(capsys, path)
    assert (found["kind"], found["flips"]["share"]) == ("pairs", 0.25)
    assert main(["audit-judge", path]) == 0
    assert "order flips" in capsys.readouterr().out


def test_a_json_list_is_read_too(tmp_path, capsys):
    path = tmp_path / "held.json"
    path.write_text(json.dumps(ROWS))
    assert facts(capsys, str(path))["items"] == 10


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        ([{"label": 1, "verdict": 1}], [], "line 1: the column 'gold' is missing. Columns there: 'label', 'verdict'"),
        ([{"label": 1, "verdict": 1}], [], "--column gold=NAME"),
        ([{"gold": 1}], [], "the column 'verdict' or 'preferred' is missing"),
        ([*ROWS, {"gold": True}], [], "line 11: the column 'verdict' is missing"),
        ([{"gold": "perhaps", "verdict": 1}], [], "line 1: the gold label 'perhaps' is neither yes nor no"),
        ([{"gold": 1, "score": 0.3}], [], "--threshold 0.5"),
        ([{"gold": "c", "preferred": "a"}], [], "none of a, b and tie"),
        ([{"gold": 1, "verdict": 1, "length": "long"}], [], "length is a length, not 'long'"),
        ([{"gold": 1, "verdict": 1, "step": 1.5}], [], "step is a whole number"),
        ([], [], "has no rows"),
        ([[1]], [], "line 1: a row is a JSON object"),
        (ROWS, ["--column", "golden=x"], "there is no column 'golden'. Did you mean 'gold'?"),
        (ROWS, ["--column", "gold"], "write NAME=THEIRS"),
        (ROWS, ["--max-error", "2"], "between 0 and 1"),
    ],
)
def test_what_is_wrong_is_reported(tmp_path, capsys, rows, words, message):
    assert main(["audit-judge", written(tmp_path, rows), *words]) == 64
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_json_or_not_there(tmp_path, capsys):
    path = tmp_path / "held.jsonl"
    path.write_text('{"gold": 1, "verdict": 1}\n{"gold": \n')
    assert main(["audit-judge", str(path)]) == 64
    assert "line 2: it is not JSON" in capsys.readouterr().err
    assert main(["audit-judge", str(tmp_path / "no.jsonl")]) == 64
    assert "cannot read" in capsys.readouterr().err
