"""The only address that writes: it works only with --edit, only for pages of this server, and only for marks."""

from __future__ import annotations

import json
import socket

import pytest
from serving import serving

import rlvitals
from conftest import until
from rlvitals.store.marks import FILE
from rlvitals.web import connections
from rlvitals.web.connections import fault_of
from rlvitals.web.server import DOORS

TOKEN = "correct-horse-battery"
ARCHIVE = {"run": "run", "set": {"archived": True}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("edited")
    for name in ("run", "other"):
        with rlvitals.start(root / name, monitor=False, hardware=False, display="none") as run:
            run.log({"loss": 1.0}, step=1)
    return root


@pytest.fixture(scope="module")
def client(folder):
    with serving(folder, edit=True) as served:
        yield served


def post(client, body, path="/api/marks", **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"host": f"localhost:{client.port}", "content-type": "application/json", "content-length": str(len(data))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value is not None)
    return client.send(f"POST {path} HTTP/1.1\r\n{lines}connection: close\r\n\r\n".encode() + data)


def test_marks_are_written_read_and_hide_runs(client, folder):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "index" not in path.parts}
    answer = post(client, {"run": "run", "set": {"name": "the good one", "tags": ["good"], "note": "ä <b>"}})
    assert (answer.status, answer.facts["editable"]) == (200, True)
    assert client.api("marks").facts["runs"] == {"run": {"name": "the good one", "tags": ["good"], "note": "ä <b>"}}
    assert {line["run"] for line in client.api("runs").facts["runs"]} == {"run", "other"}
    for mark in ("archived", "deleted"):
        assert post(client, {"run": "./run/", "set": {mark: True}}).status == 200
        assert {line["run"] for line in client.api("runs").facts["runs"]} == {"other"}
        assert {line["run"] for line in client.api("runs", hidden=1).facts["runs"]} == {"run", "other"}
        assert client.api("run", run="run").status == 200  # its address still works
        assert post(client, {"run": "run", "set": {mark: False}}).status == 200
    assert post(client, {"board": "mine", "set": {"panels": ["loss"]}}).facts["boards"] == {
        "mine": {"panels": ["loss"]}
    }
    assert post(client, {"board": "mine", "set": None}).facts["boards"] == {}
    assert post(client, {"run": "run", "set": {"name": "", "tags": [], "note": ""}}).facts["runs"] == {}
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "index" not in path.parts}
    assert {path for path in after if after[path] != before.get(path)} == {folder / FILE}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), (b"[]", 400), (b"null", 400), (b"\xff\xfe", 400), (b"[" * 60_000, 400), (b"{}", 400),
        ({"run": "run"}, 400), ({"run": "run", "set": None}, 400), ({"run": "run", "set": {"x": 1}}, 400),
        ({"run": ["run"], "set": {}}, 400), ({"run": "run", "board": "b", "set": {}}, 400),
        ({"board": "b", "set": [1]}, 400), ({"board": "", "set": {}}, 400),
        ({"run": "nowhere", "set": {"archived": True}}, 404), ({"run": "../run", "set": {"archived": True}}, 404),
        ({"run": "/etc", "set": {"archived": True}}, 404), ({"run": "run/logs", "set": {"archived": True}}, 404),
        ({"run": "run\0", "set": {"archived": True}}, 404),
    ],
)  # fmt: skip
def test_what_is_no_mark_is_refused(client, folder, body, status):
    answer = post(client, body)
    assert (answer.status, bool(answer.facts["error"])) == (status, True)
    assert client.api("marks").facts["runs"] == {}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403), ({"origin": "http://localhost:1"}, 403),
        ({"host": "evil.example"}, 403), ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 403), ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "none", "sec_fetch_mode": "navigate"}, 403),
        ({"content_type": "text/plain"}, 415), ({"content_type": None}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415), ({"content_type": "multipart/form-data"}, 415),
        ({"content_length": "70000"}, 413), ({"content_length": "-1"}, 413), ({"content_length": "1e3"}, 413),
        ({"content_length": "9" * 5000}, 413), ({"transfer_encoding": "chunked"}, 413),
        ({"content_length": None, "transfer_encoding": "chunked"}, 413), ({"Content_Length": "3"}, 413),
    ],
)  # fmt: skip
def test_other_sites_other_forms_and_long_bodies_are_refused(client, headers, status):
    assert post(client, ARCHIVE, **headers).status == status
    assert client.api("marks").facts["runs"] == {}


@pytest.mark.parametrize("path", ["/api/marks/", "/api/marks?x=1", "/api/runs", "/", "//api/marks", "/api/%6darks"])
def test_no_other_address_takes_a_body(client, path):
    assert post(client, ARCHIVE, path=path).status in (404, 405, 413)
    assert client.api("marks").facts["runs"] == {}


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_post_writes(client, method):
    answer = client.get("/api/marks", method=method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, POST")


def test_the_own_page_may_write(client):
    own = {"origin": f"http://localhost:{client.port}", "sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"}
    assert post(client, ARCHIVE, **own).facts["runs"] == {"run": {"archived": True}}
    assert post(client, {"run": "run", "set": {"archived": False}}, **own).facts["runs"] == {}


def test_a_body_may_come_in_pieces_and_a_second_request_behind_it(client, monkeypatch):
    checked = []
    monkeypatch.setattr(connections, "fault_of", lambda *given: checked.append(given) or fault_of(*given))
    data = json.dumps({"run": "run", "set": {"note": "a\n\nb"}}, indent=2).replace("\n", "\r\n\r\n").encode()
    head = "POST /api/marks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json; charset=utf-8\r\n"
    whole = f"{head}content-length: {len(data)}\r\n\r\n".encode() + data
    following = b"GET /api/marks HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection:
        for place in range(0, len(whole), 50):
            connection.sendall(whole[place : place + 50])
        connection.sendall(following)
        received = b""
        while part := connection.recv(65536):
            received += part
    assert received.count(b"HTTP/1.1 200") == 2
    assert len(checked) == 2  # a head is checked once, not once per piece
    assert received.count(b'"note":"a\\n\\nb"') == 2
    assert post(client, {"run": "run", "set": {"note": ""}}).status == 200


def test_a_body_that_never_comes_is_dropped_and_others_are_answered(folder, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    head = (
        b"POST /api/marks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    )
    with serving(folder, edit=True) as client:
        with socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection:
            connection.sendall(head)
            assert client.api("marks").status == 200
            assert connection.recv(100) == b""
        assert client.api("marks").facts["runs"] == {}


def test_the_longest_body_is_taken_and_one_byte_more_is_not(client):
    most = DOORS["/api/marks"]
    filled = json.dumps(ARCHIVE).encode().ljust(most)
    assert post(client, filled).status == 200
    assert post(client, filled + b" ").status == 413
    assert post(client, {"run": "run", "set": {"archived": False}}).status == 200


def test_without_edit_nothing_can_be_written(folder):
    with serving(folder) as client:
        assert client.api("marks").facts["editable"] is False
        assert post(client, ARCHIVE).status == 413
        answer = client.get("/api/marks", method="POST", content_type="application/json")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
        assert client.api("marks").facts["runs"] == {}


def test_beyond_this_machine_the_token_is_needed(folder):
    with serving(folder, "0.0.0.0", token=TOKEN, edit=True) as client:
        assert post(client, ARCHIVE).status == 401
        assert post(client, ARCHIVE, authorization="Bearer wrong").status == 401
        assert post(client, ARCHIVE, path=f"/api/marks?token={TOKEN}").status == 413  # this address takes no query
        cookie = client.get(f"/?token={TOKEN}").headers["set-cookie"].split(";")[0]
        assert post(client, ARCHIVE, cookie=cookie).facts["runs"] == {"run": {"archived": True}}
        assert post(client, ARCHIVE, cookie=cookie, origin="http://evil.example").status == 403
        undone = {"run": "run", "set": {"archived": False}}
        assert post(client, undone, authorization=f"Bearer {TOKEN}").facts["runs"] == {}


def test_damaged_marks_hide_no_run_and_are_not_overwritten(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, hardware=False, display="none") as run:
        run.log({"loss": 1.0}, step=1)
    (tmp_path / FILE).write_text("{")
    with serving(tmp_path, edit=True) as client:
        assert client.api("marks").status == 503
        assert post(client, ARCHIVE).status == 503
        assert [line["run"] for line in client.api("runs").facts["runs"]] == ["run"]
    assert (tmp_path / FILE).read_text() == "{"


def test_a_folder_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    with rlvitals.start(tmp_path / "run", monitor=False, hardware=False, display="none") as run:
        run.log({"loss": 1.0}, step=1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlvitals.store.marks.replace_file", full)
    with serving(tmp_path, edit=True) as client:
        assert post(client, ARCHIVE).status == 503
        assert until(lambda: not (tmp_path / ".rlvitals-marks.lock").exists())
