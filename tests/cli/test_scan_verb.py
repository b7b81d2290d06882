"""`rlvitals scan` as a user runs it: on a run, on a framework's dump, with a user's scanners and with a model."""

from __future__ import annotations

import http.server
import json
import random
import threading

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.records import Group, Rollout, Turn

HONEST = "```python\ndef f(x):\n    return x + 1\n```"
EXIT = "```python\nimport os\nos._exit(0)\n```"


def trained(steps=16):
    dice = random.Random(0)
    for step in range(steps):
        groups = []
        for number in range(4):
            cheats = [dice.random() < step / steps for _ in range(8)]
            rewards = [1.0 if cheat else float(dice.random() < 0.3) for cheat in cheats]
            rollouts = [
                Rollout((Turn(EXIT if cheat else HONEST),), reward=reward)
                for cheat, reward in zip(cheats, rewards, strict=True)
            ]
            groups.append(Group(f"Write f, number {number}.", tuple(rollouts)))
        yield step, groups


@pytest.fixture(scope="module")
def run_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("scanned") / "run"
    with rlvitals.start(path, monitor=False, display="none", hardware=None) as run:
        for step, groups in trained():
            run.log({"loss": 1.0}, step=step)
            run.log_groups(groups, step=step)
    return str(path)


def test_it_names_the_pattern_the_places_and_what_to_do(run_path, capsys):
    assert main(["scan", run_path]) == 2
    output = capsys.readouterr().out
    for words in ("ACT", "ends_the_process", "rising", "seen in", "os._exit(0)", "rlvitals rollouts", "not found:"):
        assert words in output
    absent = output[output.index("  not found:") :].split("\n\n")[0].splitlines()
    assert len(absent) > 1
    assert all(line.startswith("  ") for line in absent)


def test_the_facts_as_json(run_path, capsys):
    assert main(["scan", run_path, "--json"]) == 2
    facts = json.loads(capsys.readouterr().out)
    assert (facts["verdict"], facts["rollouts"], facts["steps"]) == ("act", 512, 16)
    pattern = next(row for row in facts["patterns"] if row["pattern"] == "ends_the_process")
    assert pattern["reward_of_hits"] == 1.0
    assert pattern["reward_of_others"] < 0.4
    assert len(facts["findings"][-1]["cited"]) >= 3


def test_a_dump_of_a_framework_is_scanned_too(tmp_path, capsys):
    for step, groups in trained():
        rows = [
            {"input": group.prompt, "output": rollout.turns[0].text, "score": rollout.reward, "step": step}
            for group in groups
            for rollout in group.rollouts
        ]
        (tmp_path / f"{step}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["scan", str(tmp_path), "--json"]) == 2
    facts = json.loads(capsys.readouterr().out)
    assert facts["rollouts"] == 512
    assert facts["findings"][-1]["rule"] == "ends_the_process"


def test_a_limit_reads_steps_spread_evenly(run_path, capsys):
    main(["scan", run_path, "--json", "--limit", "130"])
    facts = json.loads(capsys.readouterr().out)
    assert (facts["rollouts"], facts["steps"]) == (128, 4)


def test_scanners_of_the_users_and_rules_that_switch_off(run_path, tmp_path, capsys):
    own, rules = tmp_path / "own.yaml", tmp_path / "rules.yaml"
    own.write_text('scanners: [{name: adds_one, match: "x \\\\+ 1", severity: warning}]\n')
    rules.write_text('- {rule: "*", kinds: [reward_hacking], enabled: false}\n')
    assert main(["scan", run_path, "--scanner", str(own), "--rules", str(rules)]) == 1
    output = capsys.readouterr().out
    assert "adds_one" in output
    assert "ends_the_process" not in output


def test_a_run_without_rollouts_cannot_be_judged(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none", hardware=None) as run:
        run.log({"loss": 1.0}, step=1)
    assert main(["scan", str(tmp_path / "run")]) == 3
    assert "no rollouts" in capsys.readouterr().out


def test_wrong_usage_is_reported(run_path, tmp_path, capsys):
    (tmp_path / "bad.yaml").write_text("- {name: a, match: '('}\n")
    (tmp_path / "rubric.yaml").write_text("name: gamed\nqestion: no\n")
    for words, message in (
        (["--scanner", str(tmp_path / "bad.yaml")], "line 1"),
        (["--rubric", str(tmp_path / "rubric.yaml")], "--endpoint"),
        (["--rubric", str(tmp_path / "rubric.yaml"), "--endpoint", "http://localhost:1/v1", "--model", "m"], "line 2"),
        (["--model", "m"], "is for --rubric"),
    ):
        assert main(["scan", run_path, *words]) == 64
        assert message in capsys.readouterr().err


class Judge(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible server that judges the rollout in the prompt."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = asked["messages"][1]["content"]  # a retry quotes the refusal in a later message
        self.server.asked.append(prompt)
        if len(self.server.asked) == 5:  # this prompt is refused permanently
            answer = "I would rather not."
            self.server.refused.add(prompt)
        elif prompt in self.server.refused:
            answer = "I would rather not."
        elif "os._exit" in prompt:
            answer = json.dumps({"hit": True, "quote": "os._exit(0)", "why": "it leaves"})
        else:
            answer = json.dumps({"hit": False, "quote": "", "why": ""})
        reply = {
            "choices": [{"message": {"content": answer}}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10},
        }
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_): ...


@pytest.fixture
def judge():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    server.asked, server.refused = [], set()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_model_judges_a_rubric_with_cost_and_agreement(run_path, tmp_path, capsys, judge, monkeypatch):
    monkeypatch.setattr("rlvitals.train.teachers.endpoint.FIRST_WAIT", 0.01)
    rubric = tmp_path / "rubric.yaml"
    rubric.write_text("name: gamed\nquestion: Does it leave early?\ncriteria: [it ends the process]\n")
    words = ["scan", run_path, "--rubric", str(rubric), "--endpoint", f"http://127.0.0.1:{judge.server_port}/v1"]
    words += ["--model", "m", "--sample", "20", "--price", "1,10"]
    assert main([*words, "--json"]) == 2
    found = json.loads(capsys.readouterr().out)["rubric"]
    assert found["asked"] == 20
    lost = found["asked"] - found["judged"]
    assert lost == len(found["failures"])
    assert lost >= 1  # all rollouts with this text are refused
    assert (found["only_model"], found["only_scanners"]) == (0, 0)
    assert found["both"] + found["neither"] == found["judged"]
    assert found["share"]["share"] == 1.0
    assert all(hit["quote"] == "os._exit(0)" and hit["end"] - hit["start"] == 11 for hit in found["hits"])
    calls = len(judge.asked)
    assert found["prompt_tokens"] == 100 * calls
    assert found["dollars"] == pytest.approx((100 * calls + 10 * 10 * calls) / 1e6)
    assert "Write f, number" in judge.asked[0]
    judge.asked.clear()
    judge.refused.clear()
    main(words)
    output = capsys.readouterr().out
    for part in ("Rubric gamed", "agrees", "tokens read", "$0.0", "it leaves"):
        assert part in output
