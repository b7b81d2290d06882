"""The HTTP server applies the dashboard's rules. Over HTTP and stdio it reads only the folder and changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from agent_client import http_server, over_http
from agent_runs import QUIET, row

import rlvitals
from rlvitals.agents.server import MOST_BODY, make_http_server
from rlvitals.agents.tools import TOOLS, Refused, ask
from rlvitals.errors import ConfigError
from rlvitals.web.folder import Folder
from rlvitals.web.people import new_token

pytestmark = pytest.mark.slow

TOKEN = "0123456789abcdef0123"
QUESTION = {
    "jsonrpc": "2.0", "id": 1, "method": "tools/call",
    "params": {"name": "run_summary", "arguments": {"run": "run"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("served") / "out"
    with rlvitals.start(root / "run", algorithm="grpo", **QUIET) as run:
        for step in range(1, 31):
            run.log(row(step, 1), step=step)
    return root


@pytest.fixture(scope="module")
def port(folder):
    with http_server(folder, token=TOKEN) as port:
        yield port


def post(port: int, body: bytes | dict = QUESTION, path: str = "/mcp", method: str = "POST", **headers: str | None):
    """Send exactly these bytes and return the status and body of the answer. A header that is None is not sent."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    fields: dict[str, str | None] = {
        "host": f"localhost:{port}", "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {TOKEN}", "content-length": str(len(data)), "mcp-protocol-version": "2025-06-18",
    }  # fmt: skip
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value is not None)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\n{lines}connection: close\r\n\r\n".encode() + data)
        received = b""
        while part := connection.recv(65536):
            received += part
    head, _, answer = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), answer


def test_a_question_with_the_token_is_answered(port):
    status, answer = post(port)
    assert status == 200
    assert json.loads(answer)["result"]["structuredContent"]["verdict"] == "healthy"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": None}, 401),
        ({"authorization": "Bearer 0123456789abcdef0124"}, 401),
        ({"authorization": None, "path": f"/mcp?token={TOKEN}"}, 413),  # the address of a POST carries no token
        ({"host": "evil.example"}, 403),
        ({"host": "localhost.evil.example:80"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"method": "PUT"}, 413),
        *(({"method": method, "body": b"", "content_length": None}, 405) for method in ("GET", "DELETE", "PUT")),
        ({"path": "/api/runs"}, 413),
        ({"path": "/api/runs", "method": "GET", "body": b"", "content_length": None}, 404),
        ({"body": b" " * (MOST_BODY + 1)}, 413),
        ({"content_length": None, "transfer_encoding": "chunked"}, 413),
    ],
)
def test_a_request_that_breaks_the_rules_is_refused(port, headers, status):
    received, answer = post(port, **headers)
    assert received == status
    assert b"verdict" not in answer


def test_the_servers_own_page_may_ask(port):
    assert post(port, origin=f"http://localhost:{port}")[0] == 200


def test_each_person_has_a_token(folder, tmp_path):
    from rlvitals.web.people import TokenFile

    token, line = new_token("ann")
    (tmp_path / "tokens").write_text(f"{line}\n")
    with http_server(folder, people=TokenFile(tmp_path / "tokens")) as port:
        assert post(port)[0] == 401
        assert post(port, authorization=f"Bearer {token}")[0] == 200


def test_other_machines_cannot_reach_it(folder):
    with pytest.raises(ConfigError, match="ssh -L"):
        make_http_server(folder, "0.0.0.0")


def test_the_newest_protocol_without_a_handshake(folder):
    with http_server(folder) as port, over_http(port, mode="2026-07-28") as client:
        assert client("run_summary", run="run")["step"] == 30
        assert client.whole("run_summary", run="no such").is_error


def test_the_verb_serves_until_it_is_interrupted(folder):
    words = [sys.executable, "-m", "rlvitals.cli.main", "mcp", str(folder), "--http", "--port", "0"]
    environment = os.environ | {"RLVITALS_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stdout.readline()
        assert line.startswith("The MCP server is at http://localhost:")
        assert TOKEN not in line
        port = int(line.rsplit(":", 1)[1].split("/")[0])
        assert post(port)[0] == 200
        assert post(port, authorization=None)[0] == 401
        process.send_signal(signal.SIGINT)
        assert "Traceback" not in process.communicate(timeout=30)[1]
    finally:
        process.kill()
        process.communicate()


def test_without_the_package_the_command_says_how_to_install_it(folder):
    code = (
        "import sys; sys.modules['mcp_types'] = None; sys.modules['mcp'] = None\n"
        f"from rlvitals.cli.main import main; sys.exit(main(['mcp', {str(folder)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 64
    assert "pip install 'rlvitals[agents]'" in done.stderr


def test_no_path_leaves_the_folder(folder, tmp_path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text("".join(json.dumps({"step": step, "loss": 0.25 * step}) + "\n" for step in range(1, 30)))
    links = folder / "links"
    links.mkdir(exist_ok=True)
    (links / "secret.jsonl").symlink_to(secret)
    (folder / "direct.jsonl").symlink_to(secret)
    (folder / "below").symlink_to(tmp_path)
    paths = [
        "../secret.jsonl", str(secret), "links/secret.jsonl", "links", "direct.jsonl", "below", "below/secret.jsonl",
        "run/../../secret.jsonl", f"file://{secret}", "http://127.0.0.1:9/x.jsonl", "\0", "", "~", "no such",
    ]  # fmt: skip
    for path in paths:
        for tool, given in (("check_log", {"path": path}), ("run_summary", {"run": path}), ("rollouts", {"run": path})):
            with pytest.raises(Refused) as refused:
                ask(Folder(folder), tool, given)
            assert refused.value.facts["error"] in ("not_found", "wrong_question")
    secret.rename(folder / "inside.jsonl")
    assert ask(Folder(folder), "check_log", {"path": "inside.jsonl"})["rows"] == 29
    for made in (links / "secret.jsonl", folder / "direct.jsonl", folder / "below", folder / "inside.jsonl"):
        made.unlink()


def test_a_checkpoint_outside_the_folder_is_not_listed(tmp_path):
    (tmp_path / "elsewhere" / "checkpoint-20").mkdir(parents=True)
    config = {"output_dir": str(tmp_path / "elsewhere")}
    with rlvitals.start(tmp_path / "out" / "run", algorithm="grpo", config=config, **QUIET) as run:
        for step in range(1, 31):
            run.log(row(step, 1), step=step)
    answer = ask(Folder(tmp_path / "out"), "best_checkpoint", {"run": "run"})
    assert (answer["checkpoints_in_all"], answer["checkpoints"]) == (0, [])
    assert "best" not in answer


def contents(root: Path) -> dict[str, str]:
    """Every file except those of the derived index."""
    files = [path for path in root.rglob("*") if path.is_file() and "index" not in path.relative_to(root).parts]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_no_question_changes_a_file(folder):
    before = contents(folder)
    given = {
        "run": "run", "runs": ["run", "run"], "names": ["reward"], "name": "kl", "path": "run", "step": 1, "group": "1",
        "before": 1, "after": 2,
    }  # fmt: skip
    for name, tool in TOOLS.items():
        taken = {argument.name for argument in tool.arguments if argument.needed}
        with suppress(Refused):  # the run has no rollouts
            ask(Folder(folder), name, {key: value for key, value in given.items() if key in taken})
    assert contents(folder) == before
