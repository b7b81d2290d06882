"""Every verb on runs and logs in which every name and text attacks the terminal. No attack reaches the terminal, and
each verb exits as it does on the same run with harmless names.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import rlvitals
from conftest import REPO
from health_lines import finding_line
from rlvitals.cli.main import VERBS, main
from rlvitals.records import Finding, Group, Rollout, TokenTrace, ToolCall, Turn
from rlvitals.store.cursors import Cursor, write_cursor
from rlvitals.store.layout import RunDir

pytestmark = pytest.mark.slow

SEQUENCES = (
    "\x1b]0;pwn\x07", "\x1b[2J", "\x1b[7;777H", "\x1b[38;5;199m", "\x9b7;77H", "\u202e", "\u2066", "\x7f", "\b",
    "\r", "\nFORGED",
)  # fmt: skip
MARKUP = "[red][/][link=http://x]y[/link][@click=app.bell]:warning:[[["
ATTACK = MARKUP + "".join(SEQUENCES)
COLOURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[K|\x1b\[\?25[lh]|\x1b\[\d*[AK]|\r")


def plain(text):
    return text


def hostile(text):
    return f"{text}{ATTACK}"


def hostile_name(text):
    """A hostile directory name, which may contain bytes that are not valid text."""
    return f"{text}{ATTACK}".replace("/", "|") + os.fsdecode(b"\xff\x9b")


def make_run(root: Path, name: str, dress, dress_name) -> Path:
    path = root / dress_name(name)
    run = rlvitals.start(
        path,
        name=dress(name),
        config={dress("lr"): dress("fast"), "nested": {dress("key"): [dress("value")]}, "seed": len(name)},
        algorithm="grpo",
        framework="trl",
        rules=["reward < -100: warning"],
        display="none",
        hardware=False,
    )
    rollout = Rollout(
        turns=(
            Turn(dress("Look."), (ToolCall(dress("search"), {dress("word"): dress("x")}, dress("found")),)),
            Turn(dress("So."), (ToolCall(dress("open"), dress("no JSON"), None, dress("failed")),), dress("and then")),
        ),
        reward=0.5,
        outcome=dress("correct"),
        stop=dress("answered"),
        error=dress("late"),
        rubric={dress("polite"): dress("yes")},
        reward_parts={dress("length"): 0.25},
        meta={dress("kind"): dress("x")},
        trace=TokenTrace(texts=(dress("So."), "."), trained=(True, False), logprobs=(-0.1, 0.0)),
    )
    group = Group(
        prompt=dress("What?"), id=dress("q1"), answer=dress("40"), sources=(dress("m7"),), reason=dress("dull"),
        rollouts=(rollout, replace(rollout, reward=-0.5)), kept=False,
    )  # fmt: skip
    for step in range(1, 13):
        run.log(
            {"loss": 1 / step, "reward": step / 10, "epoch": step / 4, dress("mine"): step, dress("text"): dress("x")},
            step=step,
        )
        if step % 6 == 0:
            run.log_groups([group], step=step)
            run.log_eval(
                {"accuracy": 0.5, dress("score"): 1.0, "samples": [dress("a")], dress("note"): dress("b")}, step=step
            )
    run.finish(error=dress("it ended"))
    folder = RunDir(path)
    found = Finding(
        dress("rule"), dress("kind"), "critical", 9, 8, dress("It fell"), 0.5,
        {"metric": dress("mine"), dress("now"): dress("low")}, (dress("cause"),), (dress("advice"),), "none",
        (dress("mine"),),
    )  # fmt: skip
    with folder.findings.open("ab") as file:
        file.write(finding_line(found, 1.7e9, 1))
    folder.sinks.mkdir(exist_ok=True)
    write_cursor(folder, Cursor("csv", "failing", error=dress("refused")))
    info = json.loads(folder.info.read_text())
    info |= {"host": dress("host"), "command": dress("python"), "framework": dress("trl"), "algorithm": dress("grpo")}
    info |= {"git": {"branch": dress("main"), "commit": dress("abc")}, "packages": {dress("torch"): dress("2")}}
    folder.info.write_text(json.dumps(info))
    return path


def make_material(root: Path, dress, dress_name) -> dict[str, str]:
    root.mkdir()
    one, two = (make_run(root / dress_name("runs"), name, dress, dress_name) for name in ("one", "two"))
    empty = root / dress_name("nothing")
    empty.mkdir()
    damaged = root / dress_name("damaged") / dress_name("run")
    (damaged / "logs").mkdir(parents=True)
    (damaged / "run.json").write_text("{")
    rows = [{"step": step, "loss": 1 / step, dress("mine"): step, dress("text"): dress("x")} for step in range(1, 9)]
    log = root / dress_name("log.jsonl")
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    console = root / dress_name("console.log")
    console.write_text(
        "".join(f"{{'loss': {1 / step}, {dress('mine')!r}: {step}}}\n" for step in range(1, 9)), errors="replace"
    )
    table = root / dress_name("table.csv")
    column = "mine" + ("\u202e\x9b\x07\x1bc" if dress("") else "")  # brackets would make it another kind of log
    table.write_text(f'step,loss,"{column}"\n' + "".join(f"{step},{1 / step},{step}\n" for step in range(1, 9)))
    rules = root / dress_name("rules.yaml")
    rules.write_text(json.dumps({"rules": ["loss > 0.1 for 3: warning", {"rule": dress("unheard of")}]}))
    catalogue = root / dress_name("own.yaml")
    catalogue.write_text("not: [a, catalogue\n")
    pairs = root / dress_name("pairs.jsonl")
    pairs.write_text(json.dumps({"id": dress("a"), "prediction": dress("x = 1"), "reference": "x = 1"}) + "\n")
    labels = root / dress_name("labels.tsv")
    labels.write_text(f"file\tverdict\tonset_step\tkind\n{dress('log').splitlines()[0]}\thealthy\t\t\n")
    return {key: str(value) for key, value in locals().items() if isinstance(value, Path)} | {
        "runs": str(one.parent), "damaged_runs": str(damaged.parent), "missing": str(root / dress_name("missing")),
        "word": dress("word"), "bare": dress("word").replace("=", ""), "mine": dress("mine"),
        "out": str(root / dress_name("out")),
    }  # fmt: skip


COMMANDS = """
{word}
runs {runs}
runs {empty}
runs {damaged_runs}
runs {runs} --json
purge {runs} --dry-run
purge {missing}
env
completion fish
rules
rules plateau {word}
show {one}
show {one} --all
show {one} --epochs
show {missing}
show {one} --{word}
show {one} --json
ask {one}
ask {one} stop --why {word} --by {word}
ask {missing} stop
check {one}
check {one} --verbose
check {one} --names
check {one} --by env
check {one} --by {word}
check {one} --slice env={word}
check {log} --map {word}=reward
check {runs}
check {log}
check {console}
check {table}
check {log} --rules {rules}
check {log} --rules {catalogue}
check {log} --rules {word}
check {missing}
check {log} --config {bare}
check {one} --json
check {log} --follow --until-idle 0.01 --interval 0.01
check {log} --follow --until-idle 0.01 --interval 0.01 --json
check {runs} --follow
check {log} --html {out}.html
scan {one}
scan {one} --verbose
scan {one} --json
scan {one} --scanner {word}
scan {missing}
audit-judge {log}
audit-judge {missing}
audit-judge {log} --column {word}=x
backtest default {runs} {log}
backtest {rules} {log}
backtest {word} {log}
backtest default {log} --labels {labels}
explain {word}
explain kl --catalog {catalogue}
explain kl --framework {word}
compare {one} {two}
compare {one} {two} --all
compare {one} {log}
compare {one} {two} --metric {word}
compare {one} {two} --plot {word}
compare {one} {two} --json
gate {one} --baseline {two}
gate {one} --baseline {two} --rule {word} --junit {out}.xml
gate {one} --baseline {two} --rule reward>=0 --markdown -
gate {one} --baseline {two} --json
gate {one} --baseline {two} --metric {mine} --direction up
gate {one} --baseline {missing} --markdown -
plot {one} {mine} --output {out}
plot {one} {word}
plot {one} --x {word}
report {one} --output {out}.html
report {one} --output {out}.md
report {one} --output {runs}
report {one} --compare {two} --output {out}2.md
report {one} --json
watch {one} --plain --until-idle 0.01 --interval 0.01
watch {log} --plain --until-idle 0.01 --interval 0.01
watch {log} --json --until-idle 0.01 --interval 0.01
watch {runs} --plain
rollouts {one}
rollouts {one} --step 6
rollouts {one} --step 6 --group 1
rollouts {one} --step 6 --group 1 --tokens
rollouts {one} --step 6 --group 1 --tokens mask
rollouts {one} --step 6 --verbose
rollouts {one} --step 6 --group 1 --full
rollouts {one} --step 6 --group {word}
rollouts {one} --worst 2
rollouts {one} --search Look
rollouts {one} --search {word}
rollouts {one} --step 12 --diff 6
rollouts {one} --step 12 --diff 6 --group 1 --full
rollouts {one} --outcome {word}
rollouts {missing}
rollouts {one} --step 6 --json
evals {one}
evals {one} {two}
evals {one} {two} --metric {word}
evals {empty}
evals {one} --json
eval {pairs} --metrics bleu
eval {pairs} --metrics {word}
eval {missing}
eval {pairs} --metrics bleu --json
export {one} --to csv --output {out}.csv
export {one} --to {word}
export {missing} --to csv
export {runs} --to csv
import {log} --to {out}/imported
import {log} --to {one}
import {empty} --to {out}/x
train {word}
train kto --{word} 1
train kto {missing}
prune {one} --rollouts-keep-last 5 --dry-run
prune {one} --{word}
compact {two}
compact {two} --undo
notify
notify --test {word}
notify {one}
notify {one} --to slack
notify {missing} --to slack
sync {two} --to csv
sync {two} --to {word}
sync {missing} --to csv
serve {missing} --port 99999
serve {runs} --tokens {missing} --port 99999
mcp {missing}
mcp {missing} --http --port 99999
mcp {runs} --http --tokens {missing}
skill
skill --install {out}/skills
skill --install {log}
skill --force
share {one} {two} --to {out}/site --redact {word} --title {word}
share {one} --to {out}/site --no-texts --json
share {one} --to {runs}
share {missing} --to {out}/none
push {one} {word}
push {missing} {word} --token-file {log}
push {one} http://127.0.0.1:9 --token-file {log}
""".strip().split("\n")


@pytest.fixture(scope="module")
def materials(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    here = Path.cwd()
    os.chdir(root)
    try:
        yield make_material(root / "plain", plain, plain), make_material(root / "hostile", hostile, hostile_name)
    finally:
        os.chdir(here)


def words_of(command: str, material: dict[str, str]) -> list[str]:
    return [word.format(**material) for word in command.split(" ")]


def ended(words: list[str]) -> int:
    """The exit code of one command in this process; any other exception is a crash and propagates."""
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


def in_pipes(words: list[str]) -> tuple[int, str]:
    """Run a command with its output in a pipe."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        code = ended(words)
    return code, raw.getvalue().decode()


def on_terminal(words: list[str]) -> tuple[int, str]:
    """Run a command in this process with a pseudo-terminal for its output."""
    ours, theirs = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(ours, 65536):
                seen.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with open(theirs, "w", encoding="utf-8") as stream:
            assert stream.isatty()
            with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
                code = ended(words)
    finally:
        reader.join(10)
        os.close(ours)
    return code, b"".join(seen).decode()


def assert_harmless(text: str, *, is_data: bool = False) -> None:
    assert "\x1b[38;5;199m" not in text
    assert "\x1b[7;777H" not in text
    bare = COLOURS.sub("", text)
    assert {letter for letter in bare if not letter.isprintable()} <= {"\n"}
    # A long line may wrap anywhere, also after a newline that is printed as a backslash and an n.
    assert is_data or not re.search(r"(?<!\\n)\nFORGED", bare)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_verb_over_hostile_names_ends_as_over_harmless_ones(command, materials, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    harmless, attack = (in_pipes(words_of(command, material)) for material in materials)
    assert attack[0] == harmless[0], attack[1]
    assert "Traceback" not in attack[1]
    assert "\x1b" not in attack[1]
    assert "\r" not in attack[1]
    assert_harmless(attack[1])


TERMINAL = """
runs {runs}
runs {damaged_runs}
show {one} --all
show {one} --epochs
check {one} --verbose
check {one} --names
check {log} --map {word}=reward
check {runs}
check {log} --follow --until-idle 0.01 --interval 0.01
backtest default {runs}
compare {one} {two} --all
gate {one} --baseline {two}
gate {one} --baseline {two} --markdown -
rollouts {one} --step 6 --group 1 --full
rollouts {one} --step 12 --diff 6
scan {one} --verbose
evals {one} {two}
explain {word}
export {one} --to csv --output -
export {one} --to json --output -
report {one} --markdown --output -
watch {one} --plain --until-idle 0.01 --interval 0.01
eval {pairs} --metrics bleu
show {one} --json
{word}
""".strip().split("\n")


@pytest.mark.parametrize("command", TERMINAL)
def test_a_terminal_is_given_no_sequence_of_a_run(command, materials, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    harmless, attack = (on_terminal(words_of(command, material)) for material in materials)
    assert attack[0] == harmless[0], attack[1]
    assert len(attack[1]) >= 0.9 * len(harmless[1]) > 0  # column widths depend on the names
    assert_harmless(attack[1], is_data="--output -" in command)


def test_every_verb_is_attacked():
    assert {command.split(" ")[0] for command in COMMANDS} >= set(VERBS)


@pytest.mark.parametrize(
    "command", ["compare {one} {two} --all", "show {one} --all", "check {one} --verbose", "runs {runs}"]
)
def test_markup_is_shown_as_it_stands(command, materials, monkeypatch):
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.setattr("rlvitals.render.screen.PIPED_WIDTH", 2000)
    assert "[red][/][link=http:" in in_pipes(words_of(command, materials[1]))[1]


def test_data_in_a_pipe_is_exact(materials):
    words = words_of("export {one} --to json --output -", materials[1])
    done = subprocess.run(
        [sys.executable, "-m", "rlvitals.cli.main", *words], capture_output=True, env=environment(), check=True
    )
    assert json.loads(done.stdout)[0][hostile("text")] == hostile("x")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPO / "src"), "TERM": "xterm-256color", "PYTHONUTF8": "1"}


def test_an_exception_nobody_caught_is_reported_without_its_sequences(materials):
    code = (
        "import sys\nfrom rlvitals.cli import main, runs\n"
        "def run(arguments): raise ValueError(arguments.directory)\n"
        "runs.run = run\nsys.argv = ['rlvitals', 'runs', sys.argv[1]]\nmain.run()"
    )
    words = [sys.executable, "-c", code, materials[1]["runs"]]
    done = subprocess.run(words, capture_output=True, env=environment(), text=True, check=False)
    assert done.returncode == 1
    assert "ValueError: " in done.stderr
    assert_harmless(done.stderr)


@pytest.mark.slow
def test_the_screens_of_watch_give_a_terminal_no_sequence_of_a_run(materials):
    """Runs the whole program in a pseudo-terminal and opens every screen and the explanation."""
    pytest.importorskip("textual")
    child, ours = pty.fork()
    if child == 0:
        words = [sys.executable, "-m", "rlvitals.cli.main", "watch", materials[1]["one"]]
        os.execve(sys.executable, words, environment())
    seen = b""
    keys = [b"e", b"\x1b", b"2", b"3", b"J", b"4", b"j", b"w", b"q"]
    with contextlib.suppress(OSError):  # the program's exit closes the terminal
        while select.select([ours], [], [], 20)[0] and (data := os.read(ours, 65536)):
            seen += data
            is_drawn = b"step 12" in seen and not select.select([ours], [], [], 0.15)[0]
            if is_drawn and keys:
                os.write(ours, keys.pop(0))
    os.close(ours)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)  # if it did not exit by itself
    os.waitpid(child, 0)
    assert not keys
    text = seen.decode("utf-8", "replace")
    assert "It fell" in text or "loss" in text
    for sequence in ("\x1b]0;pwn", "\x1b[7;777H", "\x9b", "\u202e", "\u2066", "\x7f", "\x1b[38;5;199m"):
        assert sequence not in text
