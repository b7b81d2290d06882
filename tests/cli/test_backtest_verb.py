"""`rlvitals backtest` as a user runs it."""

from __future__ import annotations

import json

import pytest

from judged_logs import dying_rows, healthy_rows, write_jsonl
from rlvitals.cli.main import main


@pytest.fixture
def logs(tmp_path):
    write_jsonl(tmp_path / "dead.jsonl", dying_rows())
    write_jsonl(tmp_path / "fine.jsonl", healthy_rows())
    (tmp_path / "INDEX.tsv").write_text("file\tverdict\tonset_step\ndead.jsonl\tfail\t41\nfine.jsonl\thealthy\t\n")
    return tmp_path


def test_the_table_tells_each_log_and_the_totals(logs, capsys):
    assert main(["backtest", "default", str(logs), "--labels", str(logs / "INDEX.tsv")]) == 0
    shown = capsys.readouterr().out
    for part in ("dead.jsonl", "dead_gradient", "fail, in time", "healthy, quiet", "1 of 1", "95% interval"):
        assert part in shown
    assert "\x1b" not in shown


def test_without_labels_there_are_no_hits_to_tell(logs, capsys):
    assert main(["backtest", "loss > 0.1 for 3: critical", str(logs)]) == 0
    shown = capsys.readouterr().out
    assert "onset " not in shown.splitlines()[0]
    assert "runs without a label with a critical" in shown
    assert "healthy runs" not in shown


def test_json_has_stable_keys(logs, capsys):
    assert main(["backtest", "default", str(logs), "--labels", str(logs / "INDEX.tsv"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts) == ["rules", "totals", "results", "passed_over"]
    assert list(facts["results"][0]) == [
        "file", "path", "points", "label", "what", "onset_step", "onset_point", "first_warning", "first_critical",
        "kinds", "in_time", "delay", "kind_right",
    ]  # fmt: skip
    assert set(facts["totals"]["healthy_quiet"]) == {"count", "of", "low", "high"}
    assert list(facts["results"][0]["first_critical"]) == ["point", "step", "kind", "rule"]


@pytest.mark.parametrize(
    "words", [["defualt", "LOGS"], ["default", "nowhere"], ["default", "LOGS", "--labels", "nowhere.tsv"]]
)
def test_wrong_usage_is_one_line_and_64(logs, words, capsys):
    assert main(["backtest", *[str(logs) if word == "LOGS" else word for word in words]]) == 64
    assert capsys.readouterr().err.startswith("rlvitals: error: ")
