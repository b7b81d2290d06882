"""`rlvitals check` as people and pipelines use it: what is printed, exit codes, pages, following a live log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

import rlvitals
from judged_logs import dying_rows, healthy_rows, write_jsonl
from rlvitals.cli import check
from rlvitals.cli.main import main


@pytest.fixture
def healthy(tmp_path):
    return str(write_jsonl(tmp_path / "healthy.jsonl", healthy_rows()))


@pytest.fixture
def dying(tmp_path):
    return str(write_jsonl(tmp_path / "dying.jsonl", dying_rows()))


def test_the_exit_code_is_the_verdict(tmp_path, healthy, dying, capsys):
    few = str(write_jsonl(tmp_path / "few.jsonl", healthy_rows(3)))
    assert main(["check", healthy]) == 0
    assert main(["check", healthy, "--rules", "reward > 0.1 for 5: warning"]) == 1
    assert main(["check", dying]) == 2
    assert main(["check", few]) == 3
    assert main(["check", str(tmp_path)]) == 2
    firsts = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines() if line and line[0] in "✔!✖?"]
    assert firsts[:2] == ["✔ HEALTHY", "! WATCH"]
    assert {"✖ ACT", "? CANNOT JUDGE"} <= set(firsts)


def test_a_warning_need_not_fail_a_pipeline(healthy, dying):
    warned = ["check", healthy, "--rules", "reward > 0.1 for 5: warning"]
    assert main([*warned, "--fail-on", "critical"]) == 0
    assert main([*warned, "--fail-on", "warning"]) == 1
    assert main(["check", dying, "--fail-on", "critical"]) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["nowhere.jsonl"],
        ["LOG", "--rules", "kto_gide"],
        ["LOG", "--framework", "vrel"],
        ["LOG", "--config", "num_generations"],
        ["LOG", "--sentinel", "x"],
        ["LOG", "--html", "/no/such/folder/x.html"],
        ["LOG", "--follow", "--interval", "0"],
        ["FOLDER", "--follow"],
        ["LOG", "--follow", "--signal", "1"],
        ["LOG", "--follow", "--signal", "12:KILL"],
        ["LOG", "--follow", "--signal", "4194305"],
        ["LOG", "--follow", "--on-critical", "'"],
        ["LOG", "--follow", "--webhook", "ftp://x"],
    ],
)
def test_wrong_usage_is_one_line_and_64(tmp_path, healthy, dying, words, capsys):
    places = {"LOG": healthy, "FOLDER": str(tmp_path)}
    assert main(["check", *[places.get(word, word) for word in words]]) == 64
    captured = capsys.readouterr()
    assert captured.err.startswith("rlvitals: error: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"\x00\x01" * 999, b"no numbers\n", b'{"a": '])
def test_a_broken_file_exits_64_without_a_traceback(tmp_path, content, capsys):
    (tmp_path / "broken").write_bytes(content)
    assert main(["check", str(tmp_path / "broken")]) == 64
    assert "is not a training log" in capsys.readouterr().err


def test_a_finding_tells_what_since_when_why_and_what_to_do(dying, capsys):
    main(["check", dying])
    shown = capsys.readouterr().out
    for part in ("✖ ACT", "dead gradient, since step 41", "exactly zero", "started at step 41, critical at 50", "do   ",
                 "causes", "grad_norm: moving", "not recovered", "Could not be judged", "▲", "⣀"):  # fmt: skip
        assert part in shown
    assert shown.splitlines()[0].startswith("✖ ACT")
    assert "\x1b" not in shown


def test_a_terminal_without_unicode_gets_plain_letters(dying):
    done = subprocess.run(
        [sys.executable, "-m", "rlvitals.cli.main", "check", dying],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False,
    )  # fmt: skip
    shown = done.stdout.decode("ascii")
    assert done.returncode == 2
    assert shown.startswith("x ACT  ")
    assert "since 41" in shown
    assert "*****" in shown


@pytest.mark.parametrize("columns", [60, 80])
def test_nothing_is_wider_than_the_terminal(shared, columns):
    from rich.console import Console

    from rlvitals.render.check import ReportView
    from rlvitals.views.check import check

    facts = check(shared / "logs" / "verl_agent_len_turncollapse.log").to_dict()
    console = Console(width=columns, record=True, file=open(os.devnull, "w"), highlight=False)  # noqa: SIM115
    console.print(ReportView(facts, verbose=True))
    console.file.close()
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= columns
    assert any("▲" in line for line in lines)


def test_four_findings_are_printed_in_full_and_the_others_in_a_line(healthy, capsys):
    # One after the other: findings that come at once are a storm, which is printed in a shorter form.
    rules = [word for rank in range(10) for word in ("--rules", f"reward > 0.{rank:02d}1 for {1 + 6 * rank}: warning")]
    assert main(["check", healthy, *rules]) == 1
    shown = capsys.readouterr().out
    assert (shown.count("! warning"), shown.count("evidence")) == (10, 4)
    assert "Other findings (--verbose prints them in full)" in shown
    main(["check", healthy, *rules, "--verbose"])
    shown = capsys.readouterr().out
    assert (shown.count("! warning"), shown.count("evidence")) == (10, 10)
    assert "Other findings" not in shown


def test_json_holds_the_report(dying, capsys):
    assert main(["check", dying, "--json"]) == 2
    facts = json.loads(capsys.readouterr().out)
    assert (facts["verdict"], facts["points"], facts["findings"][0]["kind"]) == ("act", 70, "dead_gradient")
    assert facts["findings"][0]["row"] == 50


def test_json_of_a_folder_holds_every_report(tmp_path, healthy, dying, capsys):
    assert main(["check", str(tmp_path), "--json"]) == 2
    facts = json.loads(capsys.readouterr().out)
    assert list(facts) == ["source", "verdict", "reports", "passed_over"]
    assert [report["verdict"] for report in facts["reports"]] == ["act", "healthy"]


def test_settings_from_the_command_line_reach_the_rules(healthy, capsys):
    from rlvitals.cli.check import config_from

    assert config_from(["a=8", "b=0.5", "c=true", "d=x=y"]) == {"a": 8, "b": 0.5, "c": True, "d": "x=y"}
    assert main(["check", healthy, "--config", "num_generations=8", "--algorithm", "grpo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm"] == "grpo"


def test_control_characters_do_not_reach_the_terminal(tmp_path, capsys):
    rows = [{**row, "kl\x1b[2J": 1.0} for row in healthy_rows()]
    log = write_jsonl(tmp_path / "evil\x1b[2J.jsonl", rows)
    assert main(["check", str(log), "--rules", "reward > 0.1: warning"]) == 1
    assert "\x1b" not in capsys.readouterr().out


# --- The page


class Page(HTMLParser):
    """The tags, attributes and text of a page, as a browser reads them. Each element must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data):
        self.text += data


def test_the_page_holds_verdict_findings_and_charts_and_asks_for_nothing(dying, tmp_path):
    main(["check", dying, "--rules", "reward > 0.1 for 5: info", "--html", str(tmp_path / "page.html")])
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert '<line class="onset"' in text
    assert {"svg", "polyline", "article", "dl"} <= set(page.tags)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not {"src", "onload", "onclick"} & set(page.attributes)
    assert "url(" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in text
    for part in ("Act", "dead gradient", "since 41", "grad_norm", "Could not be judged", "no reason to worry"):
        assert part in page.text


def test_a_metric_cannot_write_into_the_page(tmp_path):
    evil = "<script>alert(1)</script>\"'&"
    rows = [{(f"{evil}/{name}" if name == "grad_norm" else name): value for name, value in row.items()}
            for row in dying_rows()]  # fmt: skip
    folder = tmp_path / "<img src=x onerror=alert(2)>"
    folder.mkdir()
    write_jsonl(folder / "a&b.jsonl", rows)
    (folder / "<i>notes<i>").write_text("no log\n")
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "- {rule: evil, when: 'reward > 0.1', kind: data, severity: warning, "
        "title: '<b>{metric}</b>', advice: ['<i>do</i>'], causes: ['<u>why</u>']}\n"
    )
    for target in (folder / "a&b.jsonl", folder):
        assert main(["check", str(target), "--rules", str(rules), "--html", str(tmp_path / "page.html")]) == 2
        page = Page((tmp_path / "page.html").read_text())
        assert not {"script", "img", "b", "i", "u"} & set(page.tags)
        assert "onerror" not in page.attributes
        for part in (f"{evil}/grad_norm", "<b>reward</b>", "<i>do</i>", "<u>why</u>", "onerror=alert(2)"):
            assert part in page.text


def test_the_page_says_what_was_judged_as_the_terminal_does(tmp_path, capsys):
    write_jsonl(tmp_path / "logs" / "one.jsonl", healthy_rows(1))
    broken = tmp_path / "logs" / "run"
    with rlvitals.start(broken, display="none") as run:
        run.log({"loss": 0.5}, step=1)
    (broken / "run.json").write_text("[]")
    main(["check", str(tmp_path / "logs"), "--verbose", "--html", str(tmp_path / "page.html")])
    page, printed = Page((tmp_path / "page.html").read_text()).text, capsys.readouterr().out
    for part in ("1 row", "0 rows"):
        assert part in page
        assert part in printed
    assert "1 rows" not in page
    assert "None" not in page


def test_the_page_of_a_folder_links_to_each_log(tmp_path, healthy, dying):
    main(["check", str(tmp_path), "--html", str(tmp_path / "page.html")])
    text = (tmp_path / "page.html").read_text()
    assert 'href="#log-0"' in text
    assert 'id="log-1"' in text


def test_the_page_of_a_folder_begins_with_the_most_severe_by_its_short_name(tmp_path, dying):
    write_jsonl(tmp_path / "a-healthy.jsonl", healthy_rows())
    main(["check", str(tmp_path), "--html", str(tmp_path / "page.html")])
    text = (tmp_path / "page.html").read_text()
    assert '<a href="#log-0">dying.jsonl</a>' in text
    assert '<a href="#log-1">a-healthy.jsonl</a>' in text
    assert "1 act, 1 healthy" in text


# --- Following


WRITER = """
import json, sys, time
import os
rows = json.load(open(sys.argv[1]))
while not os.path.exists(sys.argv[1] + ".go"):
    time.sleep(0.01)
with open(sys.argv[2], "a") as log:
    for row in rows:
        log.write(json.dumps(row) + "\\n")
        log.flush()
        time.sleep(float(sys.argv[3]))
"""

RUN_WRITER = """
import json, sys, time, rlvitals
rows = json.load(open(sys.argv[1]))
with rlvitals.start(sys.argv[2], algorithm="grpo") as run:
    for row in rows:
        run.log({k: v for k, v in row.items() if k != "step"}, step=row["step"])
        time.sleep(float(sys.argv[3]))
"""


def write_live(tmp_path, rows, target, pause=0.01, script=WRITER):
    """Start a process that writes a log. WRITER waits for `go`, because starting a process takes a while."""
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "rows.json.go").unlink(missing_ok=True)
    return subprocess.Popen([sys.executable, "-c", script, tmp_path / "rows.json", target, str(pause)])


def go(tmp_path):
    (tmp_path / "rows.json.go").touch()


def follow(target, *words, until_idle="1.5", **more):
    """Start a watcher and wait until it has read the existing rows."""
    command = [sys.executable, "-m", "rlvitals.cli.main", "check", "--follow", str(target), "--interval", "0.05"]
    idle = ["--until-idle", until_idle] if until_idle else []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    watcher = subprocess.Popen([*command, *idle, *map(str, words)], **pipes, **more)
    watcher.greeting = watcher.stderr.readline()
    assert watcher.greeting.startswith("following ")
    return watcher


@pytest.mark.slow
def test_a_collapse_is_announced_while_the_log_is_written(tmp_path):
    target, taken = tmp_path / "live.jsonl", tmp_path / "taken.json"
    writer = write_live(tmp_path, dying_rows(), target)
    training = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    command = f"{sys.executable} -c \"import os,sys; open('{taken}','w').write(sys.stdin.read()); " \
              f"open('{tmp_path}/kind','w').write(os.environ['RLVITALS_KIND'])\""  # fmt: skip
    watcher = follow(
        target, "--on-critical", command, "--sentinel", tmp_path / "stop", "--signal", f"{training.pid}:TERM"
    )
    try:
        go(tmp_path)
        out, err = watcher.communicate(timeout=60)
    finally:
        training.terminate()
        writer.wait()
    assert training.wait() == -signal.SIGTERM
    assert watcher.returncode == 2
    announced, _, report = out.partition("✖ ACT")
    assert announced.count("exactly zero") == 1
    assert "started at step 41, critical at 50" in announced
    assert "dead gradient, since step 41" in report
    assert json.loads(taken.read_text())["kind"] == (tmp_path / "kind").read_text() == "dead_gradient"
    assert json.loads((tmp_path / "stop").read_text())["finding"]["severity"] == "critical"
    assert err.count(f"sent TERM to process {training.pid}") == 1


def test_another_users_process_is_not_signalled(healthy, capsys):
    if os.geteuid() != 0:
        pytest.skip("only root can start a process as somebody else")
    with subprocess.Popen(["sleep", "30"], user=65534) as stranger:
        assert main(["check", "--follow", healthy, "--until-idle", "0.1", "--signal", str(stranger.pid)]) == 64
        assert "belongs to another user" in capsys.readouterr().err
        assert stranger.poll() is None
        stranger.terminate()


def test_a_finished_run_without_a_monitor_is_not_a_stalled_one(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none", hardware=False) as run:
        for step in range(1, 31):
            run.log({"loss": 1.0 / step, "grad_norm": 1.0 + 0.1 * (step % 3)}, step=step)
    log = tmp_path / "run" / "logs" / "training_metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    # It ended long ago: a minute a step, from 2020 on.
    log.write_text("".join(json.dumps(row | {"timestamp": 1.6e9 + 60 * row["step"]}) + "\n" for row in rows))
    assert main(["check", "--follow", str(tmp_path / "run"), "--until-idle", "5"]) == 0
    assert "healthy" in capsys.readouterr().out.lower()


def test_a_run_that_starts_between_two_looks_is_followed_as_a_run(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run"

    def train(_seconds):
        if not path.exists():
            with rlvitals.start(path, algorithm="grpo", display="none", hardware=False) as run:
                for step in range(1, 11):
                    run.log({"loss": 1.0 / step, "reward": 0.1 * step}, step=step)

    monkeypatch.setattr(check, "time", SimpleNamespace(sleep=train, time=time.time, monotonic=time.monotonic))
    main(["check", "--follow", str(path), "--json", "--until-idle", "5"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["format"], report["algorithm"], report["rows"]) == ("run", "grpo", 10)


@pytest.mark.slow
def test_what_was_there_before_is_judged_silently(tmp_path):
    target = write_jsonl(tmp_path / "live.jsonl", dying_rows())
    watcher = follow(target, "--sentinel", tmp_path / "stop", until_idle="0.3")
    out, _ = watcher.communicate(timeout=60)
    assert watcher.returncode == 2
    assert out.startswith("✖ ACT")
    assert "70 rows so far, act" in watcher.greeting
    assert not (tmp_path / "stop").exists()


@pytest.mark.slow
def test_followed_json_is_one_object_a_line(tmp_path):
    target = tmp_path / "live.jsonl"
    with write_live(tmp_path, dying_rows(), target):
        watcher = follow(target, "--json", "--on-critical", "echo noise")
        go(tmp_path)
        out, _ = watcher.communicate(timeout=60)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["type"] for line in lines][-1] == "report"
    assert {line["kind"] for line in lines[:-1] if line["severity"] == "critical"} == {"dead_gradient"}
    assert lines[-1]["verdict"] == "act"


@pytest.mark.slow
def test_following_a_run_ends_with_the_run(tmp_path):
    with write_live(tmp_path, healthy_rows(), tmp_path / "run", script=RUN_WRITER):
        watcher = follow(tmp_path / "run", until_idle=None)
        out, err = watcher.communicate(timeout=60)
    assert watcher.returncode == 0
    assert "the run is finished" in err
    assert "60 rows" in out


def test_ctrl_c_prints_the_verdict(tmp_path):
    target = write_jsonl(tmp_path / "live.jsonl", healthy_rows())
    # A test run in the background ignores SIGINT, and its children would inherit that.
    watcher = follow(target, until_idle=None, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert "60 rows so far, healthy" in watcher.greeting
    watcher.send_signal(signal.SIGINT)
    out, err = watcher.communicate(timeout=30)
    assert "stopped by Ctrl-C" in err
    assert out.startswith("✔ HEALTHY")
    assert watcher.returncode == 0


@pytest.mark.slow
def test_a_command_that_fails_is_reported_and_the_watch_goes_on(tmp_path):
    target = tmp_path / "live.jsonl"
    for command, message in (("false", "ended with 1"), ("/no/such/program", "cannot run")):
        target.unlink(missing_ok=True)
        with write_live(tmp_path, dying_rows(), target):
            watcher = follow(target, "--on-critical", command)
            go(tmp_path)
            out, err = watcher.communicate(timeout=60)
        assert message in err
        assert "✖ ACT" in out


@pytest.mark.slow
def test_a_critical_is_posted_without_paths(tmp_path):
    posted = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    Thread(target=server.serve_forever, daemon=True).start()
    target = tmp_path / "live.jsonl"
    environment = {**os.environ, "HOOK": f"http://127.0.0.1:{server.server_port}/secret"}
    with write_live(tmp_path, dying_rows(), target):
        watcher = follow(target, "--webhook", "${env:HOOK}", env=environment)
        go(tmp_path)
        out, err = watcher.communicate(timeout=60)
    server.shutdown()
    server.server_close()
    assert [(post["run"], post["severity"], post["step"]) for post in posted] == [("live.jsonl", "critical", 50)]
    assert "secret" not in out + err


def test_a_resumed_run_is_judged_by_its_living_rows(tmp_path):
    from rlvitals.views.feeds import RunFeed

    def log(run, rows):
        for row in rows:
            run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])

    with rlvitals.start(tmp_path / "run") as run:
        log(run, dying_rows())
        feed = RunFeed(tmp_path / "run")
        first = feed.poll()
        assert (len(first.rows), first.before) == (70, None)
        assert feed.ending == ""
        run.log({"loss": 0.5}, step=71)
        assert [row["step"] for row in feed.poll().rows] == [71]
        assert feed.poll().rows == []
    assert feed.ending == "the run is finished"
    with rlvitals.start(tmp_path / "run", resume=40) as run:
        log(run, healthy_rows(43)[40:])
        news = feed.poll()
    assert [row["step"] for row in news.rows] == [41, 42, 43]
    assert [row["step"] for row in news.before] == list(range(1, 41))
    fresh = RunFeed(tmp_path / "run").poll()
    assert [row["step"] for row in fresh.rows] == list(range(1, 44))


@pytest.mark.slow
def test_a_stall_is_seen_while_following(tmp_path):
    now = time.time()
    rows = [{**row, "timestamp": now - 90_000 + row["step"]} for row in healthy_rows()]
    target = write_jsonl(tmp_path / "live.jsonl", rows)
    watcher = follow(target, "--json", until_idle="0.5")
    out, _ = watcher.communicate(timeout=60)
    assert "stall" in {json.loads(line).get("kind") for line in out.splitlines()}


def by_hand(count=40):
    return [
        {"step": n, "payoff": 0.3 + 0.05 * (n % 4), "helpful_score": float(n), "kl_div": 0.01, "tok/s": 90.0 + n % 3}
        for n in range(1, count + 1)
    ]


def test_names_understood_by_their_words_are_printed_in_a_line_and_all_on_request(tmp_path, capsys):
    log = str(write_jsonl(tmp_path / "log.jsonl", by_hand()))
    main(["check", log])
    shown = capsys.readouterr().out
    assert "kl is kl_div, tokens per s is tok/s" in " ".join(shown.split())
    assert "kl_ref.k1" not in shown
    main(["check", log, "--names"])
    assert "kl_ref.k1" in capsys.readouterr().out


def test_what_a_name_is_can_be_given(tmp_path, capsys):
    log = str(write_jsonl(tmp_path / "log.jsonl", by_hand()))
    main(["check", log, "--json", "--map", "payoff=reward.total.mean", "--map", "kl_div=none"])
    names = {
        taken["signal"]: (taken["name"], taken["sureness"]) for taken in json.loads(capsys.readouterr().out)["names"]
    }
    assert names["reward"] == ("payoff", "given")
    assert "kl" not in names


def test_a_reward_that_adds_up_is_reported(tmp_path, capsys):
    rows = [
        row | {"reward": row["payoff"] + 0.01 * (n % 7), "x_bonus": 0.01 * (n % 7)} for n, row in enumerate(by_hand())
    ]
    page = tmp_path / "page.html"
    main(["check", str(write_jsonl(tmp_path / "log.jsonl", rows)), "--html", str(page)])
    assert "the reward adds up: payoff + x_bonus" in capsys.readouterr().out
    assert "the reward adds up: payoff + x_bonus" in page.read_text()
    assert "kl is kl_div" in page.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--map", "payoff"], "write NAME=CONCEPT"),
        (["--map", "payoff=reward.totl.mean"], "Did you mean 'reward.total.mean'?"),
        (["--map", "payof=reward.total.mean"], "Did you mean 'payoff'?"),
    ],
)
@pytest.mark.parametrize("place", ["LOG", "FOLDER"])
def test_a_wrong_mapping_is_an_error_with_the_nearest_word(tmp_path, words, message, place, capsys):
    log = write_jsonl(tmp_path / "log.jsonl", by_hand())
    write_jsonl(tmp_path / "other.jsonl", healthy_rows())
    assert main(["check", str(log if place == "LOG" else tmp_path), *words]) == 64
    assert message in capsys.readouterr().err


def test_a_folder_needs_a_mapped_name_in_one_of_its_logs_only(tmp_path, capsys):
    write_jsonl(tmp_path / "log.jsonl", by_hand())
    write_jsonl(tmp_path / "other.jsonl", healthy_rows())
    assert main(["check", str(tmp_path), "--map", "payoff=reward"]) != 64


def test_a_run_keeps_what_its_settings_say_of_names(tmp_path):
    mapping = {"payoff": "reward.total.mean", "api_token_rate": "perf.tokens_per_s"}
    with rlvitals.start(tmp_path / "run", mapping=mapping) as run:
        for row in by_hand():
            run.log(dict(row), step=row["step"])
    names = {taken.signal: (taken.name, taken.sureness) for taken in rlvitals.check(tmp_path / "run").names}
    assert names["reward"] == ("payoff", "given")
    with pytest.raises(rlvitals.errors.ConfigError, match=r"reward\.total\.mean"):
        rlvitals.start(tmp_path / "other", mapping={"payoff": "reward.totl.mean"})


def test_following_says_that_a_mapped_name_has_not_come(tmp_path, capsys):
    log = str(write_jsonl(tmp_path / "log.jsonl", by_hand()))
    main(["check", log, "--follow", "--until-idle", "0.01", "--interval", "0.01", "--map", "nowhere=reward"])
    assert "nowhere, which is mapped to reward, is not logged" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "verb", [["watch", "--json", "--until-idle", "0.01", "--interval", "0.01"], ["report", "--json"]]
)
def test_other_verbs_take_a_mapping_too(tmp_path, verb, capsys):
    rows = [row | {"my_thing": 1.0 if row["step"] < 30 else 0.001} for row in by_hand(80)]
    log = str(write_jsonl(tmp_path / "log.jsonl", rows))

    def is_reported(*more):
        assert main([verb[0], log, *verb[1:], *more]) != 64
        return "exploration has ended" in capsys.readouterr().out

    assert not is_reported()
    assert is_reported("--map", "my_thing=entropy.mean")
    assert main([verb[0], log, *verb[1:], "--map", "my_thing=entropy.meen"]) == 64
