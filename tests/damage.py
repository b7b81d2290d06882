"""Damaged runs, by seed: a run with everything in it, the kinds of damage to its files, and the readers of the result.

`Bench` puts a damaged run beside a good one and calls every verb and every address of the dashboard on the two. It
returns a sentence for each failure: an exception that is not one of ours, an undocumented exit code, a request that
takes too long, a good run that is hidden by its neighbour.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import shutil
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import rlvitals
from rlvitals.cli import sync
from rlvitals.cli.main import main
from rlvitals.errors import RlvitalsError
from rlvitals.records import Group, Rollout, TokenTrace, ToolCall, Turn
from rlvitals.store import index
from rlvitals.store.archive import compact_logs
from rlvitals.store.evaluations import Control, write_control
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import RunLock
from rlvitals.web.api import ANSWERS

EVERY = 4
"""Steps between two rows of the first attempt. Few rows, because each is judged a thousand times."""
ROWS = 92
"""Rows of the first attempt up to where the second resumes, plus those of the second."""
LAST_STEP = 310

SECONDS = 20
"""A request that takes longer counts as hanging."""

STRANGER = 65534
"""A user who owns nothing."""

EXIT_CODES = {"check": {0, 1, 2, 3, 64}, "backtest": {0, 1, 64}, "gate": {0, 1, 2}}
"""The documented exit codes by verb; all other verbs have 0, 1 and 64."""


# A run with everything in it


@contextlib.contextmanager
def small_indices() -> Iterator[None]:
    """Give short logs an index too."""
    kept, index.SMALLEST_INDEXED = index.SMALLEST_INDEXED, 50
    try:
        yield
    finally:
        index.SMALLEST_INDEXED = kept


@small_indices()
def make_run(path: Path, *, packed: bool = False) -> Path:
    """Rows of two attempts and two ranks, evaluations with files and a control, findings with requests and answers,
    rollouts, images, distributions, epochs, phases, samples of the machine, trackers, a checkpoint, an index, and the
    lock of a dead writer.
    """
    quiet: dict[str, Any] = {"display": "none", "hardware": False, "algorithm": "grpo", "total_steps": 400}
    config = {"lr": 1e-6, "num_generations": 4, "nested": {"deep": {"er": [1, 2]}}}
    asking = {"rules": ["kl > 0.5 for 3: critical"], "actions": "act"}
    with rlvitals.start(path, config=config, **quiet, **asking) as run:
        for step in range(EVERY, 301, EVERY):
            if step % 100 == EVERY:
                with run.phase("generate") as phase:
                    phase.tokens(100)
            run.log(_row(step), step=step)
            if step == EVERY:
                run.log_image("grid", [[0, 255], [255, 0]], step=step)
                run.log_distribution({"entropy": [0.5, 1.0, 2.0]}, step=step)
            if (request := run.request()) is not None:
                request.done("lr halved")
            if step % 100 == 0:
                run.log_eval({"accuracy": step / 400, "total_samples": 8, "answers": ["a", "b"]}, step=step)
                run.log_groups([_group("capital", step), _group("river", step)], step=step)
        with rlvitals.start(path, rank=1, **quiet) as other:
            for step in range(EVERY, 80, EVERY):
                other.log({"reward": rlvitals.values.mean([0.1, 0.2 * step]), "loss": 1.0}, step=step)
    with rlvitals.start(path, resume=290, monitor=False, **quiet) as run:
        for step in range(291, LAST_STEP + 1):
            run.log(_row(step), step=step)
    run_dir = RunDir(path)
    _samples(run_dir)
    write_control(run_dir, Control(0, {"q1": 0.5}))
    tracker = rlvitals.MetricsTracker(path / "metrics", plots=False, display="none")
    for epoch in range(1, 4):
        tracker.log_epoch(epoch, loss=1 / epoch, reward=0.1 * epoch, bleu=0.2)
    tracker.close()
    (path / "checkpoint-100").mkdir()
    (path / "checkpoint-100" / "trainer_state.json").write_text('{"global_step": 100, "log_history": []}\n')
    _quietly(["sync", str(path), "--to", "csv"])
    if packed:
        compact_logs(run_dir)
    view = rlvitals.open_run(path)
    assert (view.rows, len(view.attempts), view.ranks) == (ROWS, 2, [0, 1])
    assert view.findings
    assert view.rollout_log.overview()
    RunLock(run_dir).acquire()
    dead = json.loads(run_dir.lock.read_text()) | {"pid": 2**22 + 1}
    run_dir.lock.write_text(json.dumps(dead))
    return path


def _row(step: int) -> dict[str, Any]:
    noise = math.sin(step * 12.9898) * 0.05
    kl = 0.9 if 200 <= step < 210 else 0.01
    texts = {"note": f"row {step}"} if step % 50 == 0 else {}
    broken = {"grad_norm": math.nan if step == 152 else 1.0 + noise}
    return {"reward": 0.3 + step / 1000 + noise, "loss": 0.5 + noise, "kl": kl, "epoch": step / 100, **broken, **texts}


def _group(topic: str, step: int) -> Group:
    def rollout(number: int) -> Rollout:
        call = ToolCall("search", {"query": topic}, f"found {topic}")
        turns = (Turn(f"Looking for the {topic}.", (call,), tokens=5), Turn(f"It is number {number}."))
        trace = (
            TokenTrace(ids=(1, 2), texts=("It", " is"), trained=(True, False), logprobs=(-0.5, 0.0)) if number else None
        )
        outcome = "correct" if number else "wrong"
        return Rollout(turns, reward=number / 2, outcome=outcome, stop="answered", trace=trace)

    return Group(f"What is the {topic} at {step}?", (rollout(0), rollout(1)), id=topic, kept=True, max_turns=4)


def _samples(run_dir: RunDir) -> None:
    lines = [
        {"step": place, "timestamp": time.time(), "attempt": 1, "System/CPU_Percent": 5.0 * place} for place in range(5)
    ]
    run_dir.log("system").write_text("".join(json.dumps(line) + "\n" for line in lines))


# Kinds of damage to a file


Damage = Callable[[Path, random.Random], None]

NUMBERS = ["1e300", "-1e300", "1e999", "9" * 400, "-1", "0", "18446744073709551615", "NaN", "Infinity", "0.5"]
ODD: list[Any] = [
    None, True, "", "text", "\u0000\u001b[2J", "1e999", 0, -1, 7.5, 2**63, -(2**53) - 1, 1e300, -1e300, [], {}, [[]],
    [None, 1, "a"], {"": None}, {"count": "many"}, {"step": []}, [["a", 1]], "x" * 100_000, "running", "nan",
]  # fmt: skip


def _random_bytes(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(chance.choice([1, 40, 5000])))


def _cut_short(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data) + 1)])


def _flip_bits(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 3, 50])):
        if data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def _zeros(path: Path, chance: random.Random) -> None:
    path.write_bytes(bytes(chance.choice([1, 4096, 100_000])))


def _zeroed_part(path: Path, chance: random.Random) -> None:
    """What a power cut leaves: a block that was never written."""
    data = path.read_bytes()
    start = chance.randrange(len(data) + 1)
    end = start + chance.choice([1, 100, 4096])
    path.write_bytes(data[:start] + bytes(len(data[start:end])) + data[end:])


def _not_utf8(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    place = chance.randrange(len(data) + 1)
    path.write_bytes(data[:place] + b"\xff\xfe\xc0" + data[place:])


def _deep(path: Path, chance: random.Random) -> None:
    opening = chance.choice([b"[", b'{"a":'])
    nest = opening * 100_000
    if chance.random() < 0.5:
        path.write_bytes(nest)
        return
    _replace_value(path, chance, lambda _: "@@").write_bytes(path.read_bytes().replace(b'"@@"', nest))


def _closed_deep(path: Path, chance: random.Random) -> None:
    """Nested as deeply as a strict parser accepts."""
    depth = chance.choice([500, 900, 1000])
    nest = b"[" * depth + b"]" * depth
    _replace_value(path, chance, lambda _: "@@").write_bytes(path.read_bytes().replace(b'"@@"', nest))


def _odd_number(path: Path, chance: random.Random) -> None:
    number = chance.choice(NUMBERS)
    _replace_value(path, chance, lambda _: "@@").write_bytes(path.read_bytes().replace(b'"@@"', number.encode()))


def _other_type(path: Path, chance: random.Random) -> None:
    _replace_value(path, chance, lambda _: chance.choice(ODD))


def _other_types(path: Path, chance: random.Random) -> None:
    for _ in range(chance.choice([2, 5, 20])):
        _replace_value(path, chance, lambda _: chance.choice(ODD))


def _other_whole(path: Path, chance: random.Random) -> None:
    path.write_text(json.dumps(chance.choice(ODD)) + "\n")


def _lost_key(path: Path, chance: random.Random) -> None:
    _replace_value(path, chance, lambda _: _GONE)


def _huge_text(path: Path, chance: random.Random) -> None:
    _replace_value(path, chance, lambda _: "x" * 10_000_000)


def _lines_again(path: Path, chance: random.Random) -> None:
    """Duplicate lines, lines out of order, and two lines joined into one."""
    lines = path.read_bytes().split(b"\n")
    picked = [chance.choice(lines) for _ in range(5)]
    path.write_bytes(b"\n".join([*lines[-3:], b"".join(picked), *lines, *picked]))


_GONE = object()


def _replace_value(path: Path, chance: random.Random, make: Callable[[Any], Any]) -> Path:
    """Replace one value, anywhere in a JSON file or in one line of it."""
    text = path.read_bytes().decode("utf-8", "replace")
    lines = [text] if path.suffix == ".json" or path.name == "run.lock" else text.splitlines()
    for number in chance.sample(range(len(lines)), len(lines)):
        try:
            holder = {"": json.loads(lines[number])}
        except (ValueError, RecursionError):
            continue
        spots = list(_spots(holder))
        container, key = chance.choice(spots)
        value = make(container[key])
        if value is _GONE:
            if container is not holder:
                del container[key]
        else:
            container[key] = value
        lines[number] = json.dumps(holder[""])
        break
    path.write_text("\n".join(lines) + "\n")
    return path


def _spots(holder: Any) -> Iterator[tuple[Any, Any]]:
    pairs = list(holder.items()) if isinstance(holder, dict) else list(enumerate(holder))
    for key, value in pairs:
        yield holder, key
        if isinstance(value, dict | list):
            yield from _spots(value)


BYTES: dict[str, Damage] = {
    "random bytes": _random_bytes, "cut short": _cut_short, "bits flipped": _flip_bits, "empty": _empty,
    "zeros": _zeros, "a zeroed part": _zeroed_part, "not UTF-8": _not_utf8,
}  # fmt: skip
"""For any file."""

JSON: dict[str, Damage] = {
    "nested 100,000 deep": _deep, "nested 1,000 deep": _closed_deep, "an odd number": _odd_number,
    "another type": _other_type, "other types": _other_types, "another whole": _other_whole, "a key lost": _lost_key,
    "a text of 10 MB": _huge_text, "lines again": _lines_again,
}  # fmt: skip
"""For files that hold JSON."""

VALUES = ["an odd number", "another type", "other types", "a key lost", "nested 1,000 deep"]
"""The kinds of damage that leave most of a file unchanged."""


def _fifo(path: Path, chance: random.Random) -> None:
    _away(path)
    os.mkfifo(path)


def _device(path: Path, chance: random.Random) -> None:
    _away(path)
    path.symlink_to(chance.choice(["/dev/zero", "/dev/full", "/dev/tty", "/proc/self/mem"]))


def _folder(path: Path, chance: random.Random) -> None:
    _away(path)
    path.mkdir()
    if chance.random() < 0.5:
        (path / "inside").write_text("x")


def _loop(path: Path, chance: random.Random) -> None:
    _away(path)
    path.symlink_to(path.name)


def _dangling(path: Path, chance: random.Random) -> None:
    _away(path)
    path.symlink_to("nowhere")


def _socket(path: Path, chance: random.Random) -> None:
    _away(path)
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket has a hundred characters at most
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


def _plain_file(path: Path, chance: random.Random) -> None:
    _away(path)
    path.write_text("a file where a folder should be\n")


def _gone(path: Path, chance: random.Random) -> None:
    _away(path)


def _closed(path: Path, chance: random.Random) -> None:
    path.chmod(0)


PLACES: dict[str, Damage] = {
    "a FIFO": _fifo, "a device": _device, "a folder": _folder, "a link loop": _loop, "a dangling link": _dangling,
    "a socket": _socket, "gone": _gone, "unreadable": _closed,
}  # fmt: skip
"""Something else under the name of a file."""

FOLDERS: dict[str, Damage] = {
    "a file": _plain_file, "a link loop": _loop, "a FIFO": _fifo, "unreadable": _closed, "gone": _gone,
}  # fmt: skip
"""Something else under the name of a folder."""


def _away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def damage(run: Path, chance: random.Random) -> list[str]:
    """Damage one file of a run, or a few, or single values in most of them. Returns which files, and how."""
    said = []
    if chance.random() < 0.4:
        files = [path for path in sorted(run.rglob("*")) if path.suffix in (".json", ".jsonl", ".lock")]
        for path in chance.sample(files, chance.choice([3, 8, len(files)])):
            kind = chance.choice(VALUES)
            JSON[kind](path, chance)
            said.append(f"{path.relative_to(run)}: {kind}")
        return said
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        places = [
            path for path in sorted(run.rglob("*")) if not path.is_symlink() and (path.is_dir() or path.is_file())
        ]
        if not places:
            break
        small = [path for path in places if path.parent == run]
        path = chance.choice(small if chance.random() < 0.4 else places)
        if path.is_dir():
            kind = chance.choice(list(FOLDERS))
            FOLDERS[kind](path, chance)
        else:
            holds_json = path.suffix in (".json", ".jsonl", ".lock")
            kinds = [*BYTES, *PLACES, *(JSON if holds_json else ()), *(JSON if holds_json else ())]
            kind = chance.choice(kinds)
            ({**BYTES, **PLACES, **JSON})[kind](path, chance)
        said.append(f"{path.relative_to(run)}: {kind}")
    return said


# The readers


class Trouble(NamedTuple):
    """Something that must not happen."""

    asked: str
    what: str

    @property
    def kind(self) -> str:
        """traceback, error 500, hang or other."""
        if self.what.startswith("hangs"):
            return "hang"
        if not self.what.startswith("Traceback"):
            return "other"
        return "error 500" if self.asked.startswith("/api/") else "traceback"


class Hang(BaseException):
    """A request took too long."""


@contextlib.contextmanager
def alarm(seconds: int = SECONDS) -> Iterator[None]:
    """Raise Hang if the block takes longer."""

    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def verbs(bad: Path, good: Path, scratch: Path) -> list[list[str]]:
    """Every verb that reads a run, over the damaged run, over its folder, and beside the good one."""
    run, folder, other = str(bad), str(bad.parent), str(good)
    out = str(scratch / "out")
    return [
        ["runs", folder], ["runs", folder, "--json"], ["runs", run],
        ["show", run], ["show", run, "--json"], ["show", run, "--all", "--last", "30"], ["show", run, "--epochs"],
        ["check", run], ["check", run, "--json"], ["check", run, "--verbose", "--html", f"{out}.html"],
        ["check", folder], ["check", folder, "--json"],
        ["check", run, "--follow", "--until-idle", "0.02", "--interval", "0.01"],
        ["backtest", "default", run], ["backtest", "kl > 0.5 for 3: critical", folder],
        ["compare", run, other], ["compare", other, run, "--json"], ["compare", other, run, "--all"],
        ["gate", run, "--baseline", other], ["gate", other, "--baseline", folder, "--json", "--junit", f"{out}.xml"],
        ["plot", run, "--output", f"{out}.svg"], ["plot", run, "reward", "--x", "time", "--output", f"{out}.svg"],
        ["report", run, "--output", f"{out}.html"], ["report", run, "--markdown", "--output", f"{out}.md"],
        ["report", other, "--compare", run, "--output", f"{out}.html"],
        ["watch", run, "--plain", "--interval", "0.01", "--until-idle", "0.02"],
        ["watch", run, "--json", "--interval", "0.01", "--until-idle", "0.02"],
        ["rollouts", run], ["rollouts", run, "--json"], ["rollouts", run, "--step", "100", "--verbose", "--full"],
        ["rollouts", run, "--step", "100", "--group", "1", "--tokens"],
        ["rollouts", run, "--step", "100", "--group", "1", "--json"], ["rollouts", run, "--worst", "3"],
        ["rollouts", run, "--search", "river"], ["rollouts", run, "--step", "300", "--diff", "100"],
        ["rollouts", run, "--outcome", "correct", "--json"],
        ["evals", run], ["evals", run, other, "--json"], ["evals", f"{run}/checkpoint-100"],
        ["export", run, "--to", "csv", "--output", f"{out}.csv"],
        ["export", run, "--to", "json", "--output", f"{out}.json"],
        ["import", f"{run}/logs/training_metrics.jsonl", "--to", f"{out}-imported"],
        ["import", f"{run}/checkpoint-100", "--to", f"{out}-checkpoint"],
        ["prune", run, "--rollouts-keep-last", "2", "--evals-keep-last", "1", "--dry-run"],
        ["prune", run, "--rollouts-keep-last", "2", "--evals-keep-last", "1", "--json"],
        ["sync", run, "--json"],
        ["compact", run], ["show", run], ["compact", run, "--undo"], ["runs", folder, "--json"],
    ]  # fmt: skip


QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("image", {"name": "grid", "step": EVERY}),
    ("series", {"name": ["reward", "kl", "accuracy", "note"]}), ("series", {"name": "loss", "x": "time"}),
    ("series", {"name": "loss", "x": "epoch", "points": 10}), ("explain", {"name": "reward"}),
    ("rollouts", {}), ("rollouts", {"step": 100}), ("rollouts", {"step": 100, "group": "1"}),
    ("rollouts", {"step": 100, "group": "1", "tokens": 1}),
    ("rollouts", {"worst": 1}), ("rollouts", {"search": "river"}), ("overlay", {"name": "reward"}), ("compare", {}),
    ("marks", {}), ("table", {"column": ["reward.last", "kl.best", "reward@50", "seeds", "sweep"], "choices": 1}),
]  # fmt: skip
"""Questions with more than the run. Every other address is asked about the run alone."""


def questions(bad: str, good: str) -> list[tuple[str, dict[str, Any]]]:
    """Every address of the dashboard, over both runs."""
    both = {"run": [good, bad]}
    asked = [(address, question | {"run": bad}) for address, question in QUESTIONS]
    asked += [("sweep", both), ("compare", both), ("compare", {"run": [bad, good]})]
    asked += [("overlay", both | {"name": "reward"}), ("others", both), ("others", {"run": [bad, good]})]
    asked += [("overlays", both | {"name": ["reward", "loss"], "by": by}) for by in ("", "seed", "lr")]
    named = {address for address, _ in asked}
    asked += [(address, {"run": bad}) for address in ANSWERS if address not in named]
    return [("runs", {}), *asked, ("run", {"run": good}), ("findings", {"run": good}), ("runs", {})]


class Bench:
    """A folder with a good run in it, and room for a damaged one beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.scratch = folder / "scratch"
        self.runs.mkdir(parents=True)
        self.scratch.mkdir()
        self.good = make_run(folder / "plain")
        self._packed = make_run(folder / "packed", packed=True)
        shutil.copytree(self.good, self.runs / "good", symlinks=True)
        self.bad = self.runs / "bad"
        self.calls = {"verbs": 0, "questions": 0, "resumes": 0}
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)

    def ask_whole(self) -> list[Trouble]:
        """The same for an undamaged run. This also imports all modules: another user may not be able to read them."""
        self.clear()
        shutil.copytree(self.good, self.bad, symlinks=True)
        return self.ask_questions() + self.ask_verbs()

    def put(self, seed: int) -> str:
        """Put a newly damaged run in place; returns a description of the damage."""
        self.clear()
        chance = random.Random(seed)
        shutil.copytree(self._packed if chance.random() < 0.3 else self.good, self.bad, symlinks=True)
        return f"seed {seed}: {'; '.join(damage(self.bad, chance))}"

    def clear(self) -> None:
        """Delete the damaged run."""
        _open_up(self.bad)
        shutil.rmtree(self.bad, ignore_errors=True)
        for path in self.scratch.iterdir():
            _away(path)

    def ask_verbs(self, chosen: Callable[[list[str]], bool] = lambda words: True) -> list[Trouble]:
        """Run every verb, and check that the good run is still listed and judged."""
        found = []
        for words in verbs(self.bad, self.runs / "good", self.scratch):
            if not chosen(words):
                continue
            self.calls["verbs"] += 1
            code, out, error, trouble = _run(words)
            if trouble is None and code not in EXIT_CODES.get(words[0], {0, 1, 64}):
                trouble = f"exit code {code}: {error[-300:]}"
            if trouble is None and words in (["runs", str(self.runs), "--json"], ["check", str(self.runs), "--json"]):
                trouble = self._list_of_verb(words[0], code, out, error)
            if trouble is None and code == 64 and not error.strip():
                trouble = "failed without a word"
            if trouble is not None:
                found.append(Trouble(" ".join(words), trouble))
        return found

    def ask_questions(self) -> list[Trouble]:
        """Request every address of the dashboard's API, as its server does."""
        from starlette.requests import Request

        from rlvitals.views.run_tail import RunTail
        from rlvitals.web.folder import Folder
        from rlvitals.web.server import _endpoint

        found = []
        folder = Folder(self.runs)

        def ask(address: str, question: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            scope = {"type": "http", "query_string": urlencode(question, doseq=True).encode(), "headers": []}
            answer = _endpoint(folder, ANSWERS[address])(Request(scope))
            return answer.status_code, json.loads(answer.body)

        for address, question in questions("bad", "good"):
            self.calls["questions"] += 1
            trouble = None
            try:
                with alarm():
                    status, facts = ask(address, question)
                    while facts.get("judging"):
                        time.sleep(0.01)  # the thread that judges needs the interpreter
                        status, facts = ask(address, question)
                if address == "runs":
                    trouble = self._list_of_page(status, facts)
                elif question["run"] == "good" and status != 200:
                    trouble = f"the good run is answered with {status}: {facts}"
                elif status != 200 and not facts.get("error"):
                    trouble = f"{status} without a word"
            except Hang:
                trouble = "hangs"
            except BaseException:
                trouble = _last_frames()
            if trouble is not None:
                found.append(Trouble(f"/api/{address} {question}", trouble))
        for place in ("", "0-0-0"):
            self.calls["questions"] += 1
            try:
                with alarm():
                    tail = RunTail(self.bad, place)
                    tail.look()
                    tail.status()
            except BaseException:
                found.append(Trouble(f"/api/live from {place!r}", _last_frames()))
        return found

    def resume(self) -> list[Trouble]:
        """Resume the damaged run: it works or the error gives the reason, and no good row is lost."""
        self.calls["resumes"] += 1
        before = _good_lines(self.bad)
        try:
            with alarm(), contextlib.redirect_stderr(io.StringIO()):
                run = rlvitals.start(self.bad, resume=True, monitor=True, display="none", hardware=False)
                run.log({"loss": 0.25}, step=1000)
                run.finish()
        except RlvitalsError as error:
            lost = before - _good_lines(self.bad)
            return [Trouble("resume", f"refused ({error}), and {len(lost)} rows are gone")] if lost else []
        except BaseException:
            return [Trouble("resume", _last_frames())]
        after = _good_lines(self.bad)
        if lost := before - after:
            return [Trouble("resume", f"{len(lost)} rows are gone, such as {next(iter(lost))[:80]!r}")]
        if not any(b'"loss":0.25' in line for line in after):
            return [Trouble("resume", "the new row is not there")]
        return []

    def _list_of_verb(self, verb: str, code: int, out: str, error: str) -> str | None:
        try:
            told = json.loads(out)
        except ValueError:
            return f"no list at all (exit code {code}): {error[-300:]}"
        if verb == "runs":
            lines = {Path(line["path"]).name for line in told if line["status"]}
            rows = [line["rows"] for line in told if Path(line["path"]).name == "good"]
        else:
            lines = {Path(name).name for name in [*(one["source"] for one in told["reports"]), *told["passed_over"]]}
            rows = [one["points"] for one in told["reports"] if Path(one["source"]).name == "good" and one["verdict"]]
        if "good" not in lines or not rows:
            return f"the good run is not told: {sorted(lines)}"
        if _is_run(self.bad) and "bad" not in lines:
            return f"the damaged run is not told: {sorted(lines)}"
        return None

    def _list_of_page(self, status: int, facts: dict[str, Any]) -> str | None:
        lines = {line["run"]: line for line in facts.get("runs", [])}
        if status != 200 or not lines.get("good", {}).get("rows"):
            return f"the good run is not told: {status} {str(facts)[:300]}"
        if _is_run(self.bad) and not _leads_outside(self.bad) and "bad" not in lines:
            return f"the damaged run is not told: {sorted(lines)}"
        return None


@contextlib.contextmanager
def as_stranger() -> Iterator[None]:
    """Read as a user who owns nothing, if the tests run as root, who may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)


def _is_run(path: Path) -> bool:
    """Whether the folder is recognisable as a run."""
    return os.path.exists(path / "run.json") or os.path.exists(path / "logs" / "training_metrics.jsonl")


def _leads_outside(run: Path) -> bool:
    """Whether a link in the run points outside it. The dashboard follows no such link and does not list the run."""
    return any(path.is_symlink() and not os.path.realpath(path).startswith(str(run)) for path in run.rglob("*"))


def _good_lines(run: Path) -> set[bytes]:
    """The complete rows in the training log, plain or packed: those that end with a newline."""
    from rlvitals.store.lines import BadLine, decode

    log = RunDir(run).train_log
    try:
        if os.path.exists(log):
            data = log.read_bytes() if log.is_file() else b""
        else:
            from rlvitals.store.archive import open_log

            with open_log(log) as file:
                data = file.read()
    except (OSError, RlvitalsError):
        return set()
    found = set()
    for line in data.split(b"\n")[:-1]:
        with contextlib.suppress(BadLine):
            decode(line)
            found.add(line)
    return found


def _run(words: list[str]) -> tuple[int, str, str, str | None]:
    out, error = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    code, trouble = 0, None
    sync.LINGER_SECONDS = 2.0  # a failing tracker is reported soon, and a slow one is still waited for
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            with alarm():
                code = main(words)
        except Hang:
            trouble = f"hangs\n{_last_frames()}"
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            trouble = _last_frames()
    texts = []
    for stream in (out, error):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8", "replace"))
    return code, texts[0], texts[1], trouble


def _quietly(words: list[str]) -> None:
    code, _, error, trouble = _run(words)
    assert (code, trouble) == (0, None), error


def _last_frames() -> str:
    lines = traceback.format_exc(limit=-4).strip().splitlines()
    return "\n".join(line[:300] for line in lines[-12:])


def _open_up(folder: Path) -> None:
    for place, folders, _ in os.walk(folder):
        os.chmod(place, 0o755)
        for name in folders:
            if not os.path.islink(os.path.join(place, name)):
                os.chmod(os.path.join(place, name), 0o755)
