"""`rlvitals report` as a user runs it."""

from __future__ import annotations

import json

import pytest

import rlvitals
from judged_logs import dying_rows, healthy_rows, write_jsonl
from rlvitals.cli.main import main


@pytest.fixture
def run_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with rlvitals.start(tmp_path / "runs" / "first", name="first/../run", display="none") as run:
        for row in healthy_rows():
            run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])
    return tmp_path / "runs" / "first"


def test_it_writes_one_page_named_after_the_run_and_says_where(run_path, tmp_path, capsys):
    assert main(["report", str(run_path)]) == 0
    assert capsys.readouterr().out == "first_.._run-report.html\n"
    assert "✔ Healthy" in (tmp_path / "first_.._run-report.html").read_text()


def test_the_output_may_be_named_and_its_ending_picks_markdown(run_path, tmp_path, capsys):
    assert main(["report", str(run_path), "--output", str(tmp_path / "new" / "a.md")]) == 0
    assert (tmp_path / "new" / "a.md").read_text().startswith("## ✔ Healthy: first")
    assert main(["report", str(run_path), "--markdown"]) == 0
    assert (tmp_path / "first_.._run-report.md").exists()


def test_a_dash_is_standard_output(run_path, capfdbinary):
    assert main(["report", str(run_path), "--markdown", "--output", "-"]) == 0
    assert capfdbinary.readouterr().out.decode().startswith("## ✔ Healthy")


def test_a_log_of_another_tool_and_runs_beside_it(run_path, tmp_path, capsys):
    log = write_jsonl(tmp_path / "dying.jsonl", dying_rows())
    assert main(["report", str(log), "--compare", str(run_path), "--output", "both.html"]) == 0
    text = (tmp_path / "both.html").read_text()
    assert "✖ Act" in text
    assert 'id="compared"' in text


def test_json_gives_the_facts_and_writes_nothing(run_path, tmp_path, capsys):
    assert main(["report", str(run_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["check"]["verdict"], facts["about"]["rows"]) == ("healthy", 60)
    assert not list(tmp_path.glob("*.html"))


def test_wrong_usage_is_one_line(run_path, tmp_path, capsys):
    for words, message in (
        (["report", str(tmp_path / "nowhere")], "nothing there"),
        (["report", str(run_path), "--output", str(tmp_path)], "is a folder"),
        (["report", str(run_path), "--output", str(run_path / "run.json" / "x.html")], "cannot write"),
    ):
        assert main(words) == 64
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
