"""Code in a process with limits: what is accepted, what is stopped, and what it cannot reach. All faults are real."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rlvitals.train.teachers import worker
from rlvitals.train.teachers.runner import MAX_LENGTH, CannotRun, Runner, parse, refusal

TESTS = (("f(1)", "2"), ("f(2)", "3"))


@pytest.fixture(scope="module")
def runner():
    kept = Runner(seconds=0.3, memory_mib=300)
    yield kept
    kept.close()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os\ndef f(x): return x", "Import"),
        ("def f(x):\n    import os\n    return x", "Import"),
        ("from os import path", "ImportFrom"),
        ("def f(x): return x.__class__", "__class__"),
        ("def f(x): return ().__class__.__bases__", "__bases__"),
        ("def f(x): return '{0.__class__}'.format(x)", "format"),
        ("def f(x): return __import__('os')", "__import__"),
        ("def f(__x): return 1", "__x"),
        ("def f(x):\n    global y\n    return x", "Global"),
        ("class A: pass", "ClassDef"),
        ("@print\ndef f(x): return x", "decorator"),
        ("def f(x):\n    try:\n        return x\n    except: pass", "Try"),
        ("def f(x):\n    with x: pass", "With"),
        ("async def f(x): return x", "AsyncFunctionDef"),
        ("def f(x): yield x", "Yield"),
        ("x = 1", "outside of a function"),
        ("def f(x): x.append = 3", "append"),
        ("def f(x): return (lambda: (yield))", "Yield"),
        ("def f(x) return x", "not Python"),
        ("def f(x): return " + "(" * 3000 + ")" * 3000, "not Python"),
        ("def f(x): return x" + " " * MAX_LENGTH, "not Python"),
        ("def f(x): return '\0'", "not Python"),
    ],
)
def test_code_outside_the_allow_list_is_refused(code, why):
    assert why in (refusal(parse(code)) or "")


def test_what_small_functions_are_made_of_is_let_in():
    code = (
        'def f(x: int, *, y=1) -> list[int]:\n    "Doc."\n    found = []\n    for i in range(x):\n'
        "        if i % 2 and not i > 5:\n            found.append(i ** y)\n        else:\n            continue\n"
        "    while found and found[0] < 0:\n        found.pop()\n"
        "    return [*found, *sorted({a: b for a, b in zip(found, found)}, key=lambda a: -a)][:9] or [len(f'{x:>3}')]"
    )
    assert refusal(parse(code)) is None


def test_tests_are_passed_one_by_one(runner):
    assert runner.test("def f(x): return x + 1", TESTS).passed == (True, True)
    found = runner.test("def f(x): return 2", TESTS)
    assert found.passed == (True, False)
    assert found.share == 0.5


def test_an_equal_number_of_another_type_does_not_pass(runner):
    assert runner.test("def f(x): return 1", [("f(0)", "True")]).passed == (False,)
    assert runner.test("def f(x): return 2.0", [("f(0)", "2")]).passed == (False,)


def test_an_exception_fails_its_test_alone_and_is_named(runner):
    found = runner.test("def f(x): return 2 // (x - 2) * -1", [("f(1)", "2"), ("f(2)", "3")])
    assert found.passed == (True, False)
    assert "ZeroDivisionError" in found.problem


def test_code_that_never_ends_is_ended_and_the_next_one_runs(runner):
    start = time.process_time()
    for code in ("def f(x):\n    while True: pass", "def f(x): return sum(range(10**15))"):
        found = runner.test(code, TESTS)
        assert found.passed == (False, False)
        assert "ended by a limit" in found.problem
    assert runner.test("def f(x): return x + 1", TESTS).share == 1.0
    assert time.process_time() - start < 5  # the time was spent in the other process


def test_memory_is_limited(runner):
    runner.described()
    if not runner.protections["memory"]:
        pytest.skip("this platform does not keep a memory limit")
    found = runner.test("def f(x): return len('a' * 10**9)", TESTS)
    assert found.passed == (False, False)
    assert "MemoryError" in found.problem


def test_builtins_that_are_not_listed_are_not_there(runner):
    assert "NameError" in runner.test("def f(x): return open('/etc/passwd')", TESTS).problem
    assert "NameError" in runner.test("def f(x): return eval('1')", TESTS).problem


def test_one_answer_leaves_nothing_behind_for_the_next(runner):
    runner.test("def g(x): return 7\ndef f(x): return 2", TESTS)
    assert "NameError" in runner.test("def f(x): return g(x)", TESTS).problem


def test_a_process_killed_by_somebody_else_says_nothing_about_the_answer():
    own = Runner(seconds=20)
    try:
        own.described()
        threading.Timer(0.3, os.kill, (own._worker.pid, signal.SIGKILL)).start()
        with pytest.raises(CannotRun, match="killed by another process"):
            own.test("def f(x):\n    while True: pass", TESTS)
        assert own.test("def f(x): return x + 1", TESTS).share == 1.0
    finally:
        own.close()


def test_what_protects_the_machine_is_described_and_that_it_is_no_sandbox(runner):
    text = runner.described()
    assert "not a sandbox for hostile code" in text
    for protection, words in (("network", "no network"), ("memory", "a memory limit")):
        assert words in text
        is_present = text.find(words) < text.find("; not available") or "; not available" not in text
        assert is_present == runner.protections[protection]


INSIDE = """
import sys
sys.path.insert(0, {folder!r})
import worker
held = worker.limit(400)
import errno, json
told = dict(held)
try:
    open({file!r}, "w").write("x")
    told["wrote"] = True
except OSError as error:
    told["wrote"] = False
sys.stdout.write(json.dumps(told))
"""


def test_the_process_cannot_write_files(tmp_path):
    import json

    code = INSIDE.format(folder=str(Path(worker.__file__).parent), file=str(tmp_path / "made"))
    report = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    if not report["files"]:
        pytest.skip("this platform limits no files")
    assert report["wrote"] is False
    if report["read_only"]:
        assert not (tmp_path / "made").exists()


def test_the_process_has_no_network_where_linux_lets_it_give_it_up():
    server = socket.create_server(("127.0.0.1", 0))
    with server:
        code = (
            f"import sys; sys.path.insert(0, {str(Path(worker.__file__).parent)!r})\n"
            "import worker, socket\n"
            "held = worker.isolate()[0]\n"
            f"sys.exit(3 if not held else socket.socket().connect_ex(('127.0.0.1', {server.getsockname()[1]})) == 0)"
        )
        status = subprocess.run([sys.executable, "-c", code], check=False).returncode
    if status == 3:
        pytest.skip("no namespaces of one's own are allowed here")
    assert status == 0


def test_the_process_gets_none_of_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    own = Runner()
    try:
        own.described()
        environ = Path(f"/proc/{own._worker.pid}/environ")
        if not environ.exists():
            pytest.skip("the environment of a process cannot be read here")
        assert b"secret-key" not in environ.read_bytes()
    finally:
        own.close()
