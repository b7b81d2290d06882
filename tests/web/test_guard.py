"""Attacks on a real server: other sites, other host names, paths out of the folder, expensive requests."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from serving import serving

import rlvitals
from conftest import until
from rlvitals.cli.main import main
from rlvitals.errors import ConfigError, RunNotFound
from rlvitals.web.folder import Folder
from rlvitals.web.guard import Guard, choose_token, host_name, known_hosts

TOKEN = "correct-horse-battery"
PROTECTING = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


def write_run(path, rows=10, **metrics):
    with rlvitals.start(path, monitor=False, hardware=False, display="none") as run:
        for step in range(1, rows + 1):
            run.log({"loss": 1.0 / step, **metrics}, step=step)
    return path


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    write_run(folder / "secret", hidden=1.0)
    (folder / "password.json").write_text('{"password": "hunter2"}')
    return folder


@pytest.fixture(scope="module")
def client(tmp_path_factory, outside):
    folder = tmp_path_factory.mktemp("served")
    write_run(folder / "run")
    (folder / "way_out").symlink_to(outside / "secret")
    for name, target in (("config.json", outside / "password.json"), ("logs", outside / "secret" / "logs")):
        write_run(folder / f"linked_{name}")
        place = folder / f"linked_{name}" / name
        place.rename(place.with_name(f"old_{name}"))
        place.symlink_to(target)
    with serving(folder) as served:
        yield served


def test_a_plain_question_is_answered_with_every_protecting_header(client):
    answer = client.api("run", run="run")
    assert answer.status == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers.items() >= PROTECTING.items()
    assert answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers
    assert "server" not in answer.headers


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/nonsense", "/nowhere", "/api/run?run=nowhere"])
def test_pages_files_and_errors_carry_the_same_headers(client, path):
    answer = client.get(path)
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers.items() >= PROTECTING.items()


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8642", "localhost.evil.example", "127.0.0.1.evil.example",
        "evil-localhost", "evil.localhost",
        "localhost@evil.example", "evil.example#localhost", "192.168.1.5", "", None, "[::1", "localhost:port",
        "a, localhost", "localhost/../evil",
    ],
)  # fmt: skip
def test_a_name_that_is_not_this_machine_is_refused_as_rebinding(client, host):
    answer = client.get("/api/runs", host=host)
    assert answer.status in (400, 403)
    assert b"loss" not in answer.body


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9999", "[::1]:80", "localhost."])
def test_this_machine_s_own_names_are_known_on_any_port(client, host):
    assert client.get("/api/runs", host=host).status == 200


def test_two_host_headers_are_refused(client):
    request = b"GET /api/runs HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n"
    assert client.send(request).status in (400, 403)


@pytest.mark.parametrize("hosts", [(), ("evil.example", "localhost"), ("localhost", "localhost")])
def test_a_request_without_one_host_is_refused_by_the_guard_itself(hosts):
    """A different HTTP parser may let them pass."""
    reached, sent = [], []

    async def app(scope, receive, send):
        reached.append(scope)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/api/runs", "raw_path": b"/api/runs", "query_string": b""}
    scope["headers"] = [(b"host", host.encode()) for host in hosts]
    asyncio.run(Guard(app, ["localhost"])(scope, None, send))
    assert (reached, sent[0]["status"]) == ([], 403)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost:1", "https://localhost.evil.example", "file://", "//", "x"],
)
def test_another_site_s_page_may_not_ask(client, origin):
    answer = client.get("/api/runs", origin=origin)
    assert answer.status == 403
    assert "runs" not in answer.facts


def test_the_own_page_may_ask(client):
    assert client.get("/api/runs", origin=f"http://localhost:{client.port}").status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_picture_or_script_of_another_site_gets_nothing(client, site):
    assert client.get("/api/runs", sec_fetch_site=site, sec_fetch_mode="no-cors").status == 403
    assert client.get("/", sec_fetch_site=site, sec_fetch_mode="navigate").status in (200, 404)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_written(client, method):
    answer = client.get("/api/runs", method=method)
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


WAYS_OUT = [
    "..", "../", "../outside/secret", "run/../..", "run/../../secret", "/etc", "//etc", "/", "\0", "run\0", "way_out",
    "linked_config.json", "linked_logs", "..%2f..", "%2e%2e", "run/logs", "~", "~root", "C:\\Windows", "..\\..",
    "nowhere",
    "run/" * 900, "a" * 300, "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["run", "metrics", "series", "findings", "live", "rollouts", "evaluations", "compare"])
def test_no_path_leaves_the_folder(client, name):
    for run in WAYS_OUT:
        answer = client.api(name, run=[run, "run"] if name == "compare" else run, name="loss")
        assert (answer.status, run[:20]) == (404, run[:20])
        assert b"hunter2" not in answer.body, run[:20]
        assert b"hidden" not in answer.body, run[:20]


@pytest.mark.parametrize(
    "folder", [".", "logs", "logs/ranks", "logs/rollouts", "eval_logs", "metrics", "sinks", "index"]
)
def test_a_run_with_a_link_to_the_outside_in_any_of_its_folders_is_refused(tmp_path, outside, folder):
    run = write_run(tmp_path / "served" / "run")
    served = Folder(tmp_path / "served")
    assert served.place("run") == run
    (run / folder).mkdir(parents=True, exist_ok=True)
    (run / folder / "inside").symlink_to(run / "run.json")
    assert served.place("run") == run
    (run / folder / "way_out").symlink_to(outside / "password.json")
    with pytest.raises(RunNotFound):
        served.place("run")


def test_an_absolute_path_to_a_real_run_is_refused(client, outside):
    assert client.api("run", run=str(outside / "secret")).status == 404


@pytest.mark.parametrize(
    "path", ["/api/run?run=%2e%2e%2fsecret", "/api/run?run=run%00", "/api/run?run=%2Fetc%2Fpasswd"]
)
def test_encoding_a_way_out_does_not_open_it(client, path):
    assert client.get(path).status == 404


def test_runs_that_link_to_the_outside_are_not_listed(client):
    assert {line["run"] for line in client.get("/api/runs").facts["runs"]} == {"run"}


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py", "/static//etc/passwd",
        "/static/..\\server.py", "/static/%00", "/static/a%00.js", "/static/" + "a" * 5000, "/static/.", "/static/",
        "/static/%2e%2e%2f%2e%2e%2fcli%2fserve.py", "//evil.example/static/x", "/%2e%2e/%2e%2e/etc/passwd",
    ],
)  # fmt: skip
def test_files_of_the_package_alone_are_served(client, path):
    answer = client.get(path)
    assert answer.status in (400, 403, 404)
    assert b"import" not in answer.body
    assert b"root:" not in answer.body


def test_a_huge_address_is_refused_and_the_server_lives_on(client):
    assert client.get("/api/series?run=run" + "&name=loss" * 7000).status in (400, 414, 431)
    assert client.get("/api/series?run=run" + "".join(f"&name=a{place}" for place in range(300))).status == 400
    assert client.api("series", run="run", name="x" * 5000).status == 400
    assert client.api("compare", run=[f"r{place}" for place in range(100)]).status == 400
    assert client.api("runs").status == 200


@pytest.mark.parametrize(
    "question",
    [
        {"from": "nan"}, {"to": "inf"}, {"points": "1e309"}, {"points": "x"}, {"points": "1.5"}, {"from": "1; drop"},
        {"x": "__class__"}, {"x": "../step"},
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused(client, question):
    answer = client.api("series", run="run", name="loss", **question)
    assert answer.status == 400
    assert answer.facts["error"]


def test_points_beyond_any_screen_are_cut(client):
    assert client.api("series", run="run", name="loss", points=10**15).facts["lines"][0]["shown"] == 10
    assert client.api("series", run="run", name="loss", points=-5).status == 200


def test_garbage_bytes_do_not_bring_the_server_down(client):
    for garbage in (
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"\0" * 1000,
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    assert client.api("runs").status == 200


def test_a_token_is_asked_for_and_then_kept_as_a_cookie(tmp_path):
    write_run(tmp_path / "run")
    with serving(tmp_path, "0.0.0.0", token=TOKEN) as client:
        assert client.get("/api/runs").status == 401
        assert client.get("/").status == 401
        assert client.get("/static/index.html").status == 401
        assert client.get("/api/runs?token=wrong").status == 401
        assert client.get("/api/runs", authorization=f"Bearer {TOKEN}").status == 200
        assert client.get("/api/runs", authorization="Bearer ").status == 401
        first = client.get(f"/?token={TOKEN}&screen=metrics")
        assert first.status == 303
        assert first.headers["location"] == "./?screen=metrics"
        cookie, *rules = first.headers["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=Lax"} <= set(rules)
        assert TOKEN not in first.headers["set-cookie"]
        assert client.get("/api/runs", cookie=cookie).status == 200
        assert client.get("/api/runs", cookie=cookie[:-1] + "0z").status == 401
        assert client.get("/api/runs", cookie=cookie, origin="http://evil.example").status == 403


def test_the_way_in_with_a_token_leads_to_no_other_site(tmp_path):
    with serving(tmp_path, "0.0.0.0", token=TOKEN) as client:
        for path in (
            f"//evil.example/?token={TOKEN}",
            f"/\\evil.example?token={TOKEN}",
            f"/%0d%0aset-cookie:x?token={TOKEN}",
        ):
            answer = client.get(path)
            assert not answer.headers.get("location", "/").startswith(("//", "/\\", "http"))
            assert answer.headers.get("set-cookie", "rlvitals_").startswith("rlvitals_")


def test_listening_everywhere_knows_addresses_but_no_foreign_names(tmp_path):
    with serving(tmp_path, "0.0.0.0", token=TOKEN, allow_hosts=["train.example"]) as client:
        for host, status in (
            ("10.1.2.3", 200),
            ("train.example", 200),
            (socket.gethostname(), 200),
            ("evil.example", 403),
        ):
            assert client.get("/api/runs", host=host, authorization=f"Bearer {TOKEN}").status == status


def test_the_token_is_in_no_log(tmp_path, capfd, caplog):
    write_run(tmp_path / "run")
    with serving(tmp_path, "0.0.0.0", token=TOKEN) as client:
        client.get(f"/?token={TOKEN}")
        client.get(f"/api/run?run=nowhere&token={TOKEN}")
    printed = capfd.readouterr()
    assert TOKEN not in printed.out + printed.err + caplog.text


def test_loopback_needs_no_token_and_any_other_address_gets_one():
    assert choose_token("127.0.0.1", None) is None
    assert choose_token("localhost", None) is None
    assert len(choose_token("0.0.0.0", None)) >= 32
    assert choose_token("0.0.0.0", None) != choose_token("0.0.0.0", None)
    assert choose_token("127.0.0.1", TOKEN) == TOKEN
    with pytest.raises(ConfigError, match="16"):
        choose_token("0.0.0.0", "short")


def test_names_in_host_headers_are_read_strictly():
    assert host_name("[::1]:80") == "::1"
    assert host_name("LocalHost.:80") == "localhost"
    assert host_name("a\tb") is None
    hosts, any_address = known_hosts("192.168.1.5")
    assert "192.168.1.5" in hosts
    assert not any_address
    assert known_hosts("127.0.0.5") == ({"localhost", "127.0.0.1", "::1", "127.0.0.5"}, False)


def test_a_port_that_is_none_is_reported(tmp_path, capsys):
    assert main(["serve", str(tmp_path), "--port", "70000"]) == 64
    assert "65535" in capsys.readouterr().err
    assert main(["serve", str(tmp_path / "nowhere"), "--port", "0"]) == 64


MARKUP = "<img src=x onerror=alert(1)>"


def test_a_hostile_run_is_sent_as_plain_data(tmp_path):
    """Markup, control characters and path tricks in every text of a run."""
    odd = [
        MARKUP,
        "</script><script>alert(1)</script>",
        "a\u2028b",
        "a\nb",
        "../../x",
        "__proto__",
        "constructor",
        "%00",
    ]
    with rlvitals.start(
        tmp_path / "run", name=MARKUP, config={MARKUP: MARKUP, "__proto__": {"x": 1}}, monitor=False, hardware=False,
        display="none",
    ) as run:  # fmt: skip
        run.log({"note": MARKUP}, step=1)
    with (tmp_path / "run" / "logs" / "training_metrics.jsonl").open("a") as log:  # other recorders rename nothing
        log.write(json.dumps({"step": 2, "timestamp": 1.0, "attempt": 1} | dict.fromkeys(odd, 1.0)) + "\n")
    with serving(tmp_path) as client:
        for name in ("runs", "run", "metrics", "findings", "evaluations", "performance"):
            answer = client.api(name, run="run")
            assert answer.status == 200
            assert answer.headers["content-type"] == "application/json"
            json.loads(answer.body)
        assert {line["name"] for line in client.api("metrics", run="run").facts["metrics"]} >= set(odd)
        for name in odd:
            line = client.api("series", run="run", name=name).facts["lines"][0]
            assert (line["name"], line["y"]) == (name, [1.0])


@pytest.mark.slow
def test_a_run_with_very_many_keys_is_listed_in_part(tmp_path):
    log = tmp_path / "run" / "logs" / "training_metrics.jsonl"
    log.parent.mkdir(parents=True)
    row = {"step": 1, "timestamp": 1.0, "attempt": 1} | {f"key/{number}": 1.0 for number in range(200_000)}
    log.write_text(json.dumps(row) + "\n")
    with serving(tmp_path) as client:
        listed = client.api("metrics", run="run").facts
        assert len(listed["metrics"]) + listed["left_out"] == 200_000
        assert len(listed["metrics"]) == 20_000
        assert len(client.api("run", run="run").facts["tiles"]) == 8
        assert client.api("series", run="run", name="key/199999").facts["lines"][0]["y"] == [1.0]
        assert client.api("runs").facts["runs"][0]["metrics"] == 200_000


def test_nothing_in_a_run_changes_but_its_index(tmp_path):
    write_run(tmp_path / "run", rows=400)

    def files():
        return {
            str(path.relative_to(tmp_path)): (path.stat().st_mtime_ns, path.read_bytes())
            for path in tmp_path.rglob("*")
            if path.is_file() and "index" not in path.parts
        }

    before = files()
    with serving(tmp_path) as client:
        for name in ("runs", "run", "metrics", "findings", "evaluations", "performance", "rollouts"):
            client.api(name, run="run")
        client.api("series", run="run", name="loss")
    assert files() == before


def test_a_page_that_stops_listening_is_let_go(tmp_path):
    write_run(tmp_path / "run")
    with serving(tmp_path) as client:
        for _ in range(70):  # more than may listen at the same time
            with client.listen("run") as events:
                next(events)
        assert until(lambda: client.api("runs").status == 200)
        with client.listen("run") as events:
            assert next(events)[0] == "status"


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path):
    write_run(tmp_path / "fine")
    write_run(tmp_path / "broken")
    (tmp_path / "broken" / "run.json").unlink()
    (tmp_path / "broken" / "run.json").mkdir()
    with serving(tmp_path) as client:
        assert {line["status"] for line in client.api("runs").facts["runs"]} == {"finished", "unreadable"}
        assert client.api("run", run="broken").status == 503


def test_a_log_with_names_of_its_own_in_every_row_is_refused_and_hides_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr("rlvitals.store.chunks.MOST_CELLS", 100_000)
    write_run(tmp_path / "fine")
    log = tmp_path / "odd" / "logs" / "training_metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f'{{"step":{step},"loss at step {step}":1.0}}\n' for step in range(1000)))
    with serving(tmp_path) as client:
        answer = client.api("metrics", run="odd")
        assert answer.status == 503
        assert "1,003 different names in 1,000 rows" in answer.facts["error"]
        assert {line["run"]: line["rows"] for line in client.api("runs").facts["runs"]} == {"fine": 10, "odd": 1000}
        assert client.api("metrics", run="fine").status == 200
    assert not (tmp_path / "odd" / "index").exists()
