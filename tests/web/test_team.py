"""A server for several people: a token for each, a bucket behind it, an access log, a proxy in front of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path
from unittest.mock import ANY

import pytest
from browsing import REPO
from serving import events, parse, serving

import rlvitals
from conftest import free_port, until
from rlvitals.cli.main import main
from rlvitals.errors import ConfigError
from rlvitals.store.inbox import Inbox
from rlvitals.store.layout import RunDir
from rlvitals.store.remote import Mirror, upload_changes
from rlvitals.views.run import open_run
from rlvitals.web.access_log import AccessLog
from rlvitals.web.delivery import Delivery, PushServer
from rlvitals.web.people import TokenFile, new_token, parse_tokens, proof_of, ticket_of
from rlvitals.web.server import Team

ANN, BEN = "ann-0123456789abcdef", "ben-0123456789abcdef"


def start(path, **settings):
    return rlvitals.start(path, **({"display": "none", "hardware": False, "monitor": False} | settings))


@pytest.fixture
def tokens(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"# the team\nann {ANN}\nben {BEN}\n")
    return file


def bearer(client, token, path="/api/runs"):
    return client.get(path, authorization=f"Bearer {token}").status


def test_each_person_has_a_token_and_loses_it_at_once(tmp_path, tokens):
    folder = tmp_path / "runs"
    run = start(folder / "one")
    run.log({"loss": 1.0}, step=1)
    log = tmp_path / "access.log"
    with serving(folder, team=Team(people=TokenFile(tokens), seen=AccessLog(str(log)))) as client:
        assert client.get("/api/runs").status == 401
        assert (bearer(client, ANN), bearer(client, BEN), bearer(client, ANN + "x")) == (200, 200, 401)
        cookie = client.get(f"/?token={ANN}").headers["set-cookie"].partition(";")[0]
        assert ANN not in cookie
        assert client.get("/api/runs?token=x", cookie=cookie).status == 200
        with client.listen("one", cookie=cookie) as stream:
            assert next(stream)[0] == "status"
            tokens.write_text(f"ben {BEN}\ncara cara-0123456789abcdef\n")
            began = time.monotonic()
            for _ in stream:  # the remaining events, then the end
                pass
            assert time.monotonic() - began < 5
        assert (bearer(client, ANN), bearer(client, BEN), bearer(client, "cara-0123456789abcdef")) == (401, 200, 200)
        assert client.get("/api/runs", cookie=cookie).status == 401
        tokens.unlink()
        assert bearer(client, BEN) == 401, "a file that cannot be read lets nobody in"
    run.finish()
    logged = log.read_text()
    assert " ann GET /api/runs 200" in logged
    assert " ben GET /api/runs 200" in logged
    assert ANN not in logged
    assert "token" not in logged


def test_the_file_may_hold_proofs_which_open_nothing(tmp_path):
    token, line = new_token("dora")
    file = tmp_path / "tokens"
    file.write_text(line + "\n")
    proof = line.split("proof:")[1]
    assert token not in line
    with serving(tmp_path, team=Team(people=TokenFile(file))) as client:
        assert (bearer(client, token), bearer(client, proof)) == (200, 401)
        name = client.get(f"/?token={token}").headers["set-cookie"].partition("=")[0]
        assert client.get("/api/runs", cookie=f"{name}={proof}").status == 401


def test_a_new_token_is_printed_with_its_line(tmp_path, capsys):
    assert main(["serve", "--new-token", "eve"]) == 0
    output = capsys.readouterr().out
    token, line = re.search(r"shown once: (\S+)\n.*?: (eve proof:\w+)\n", output).groups()
    assert dict(parse_tokens(line)) == {"eve": proof_of(ticket_of(token))}
    (tmp_path / "tokens").write_text("eve little")
    for flags in (["--tokens", str(tmp_path / "tokens")], ["--tokens", "x", "--token", "y" * 20], ["--accept-pushes"]):
        assert main(["serve", str(tmp_path), "--port", "0", *flags]) == 64
        assert "little" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a b", "a\nann x", "a/b", "", "#ann"])
def test_a_name_that_the_file_of_tokens_could_not_hold_gets_no_token(name):
    with pytest.raises(ConfigError, match="not a name for a token"):
        new_token(name)


@pytest.mark.parametrize(
    "text", ["ann", "ann short", f"ann {ANN} more", f"ann {ANN}\nann {BEN}", "ann proof:12", f"a/b {ANN}"]
)
def test_a_wrong_line_is_named_without_its_token(text):
    with pytest.raises(ConfigError, match=r"line \d") as error:
        parse_tokens(text)
    assert ANN not in str(error.value)


def test_runs_of_other_machines_appear_from_a_bucket(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("RLVITALS_CACHE", str(tmp_path / "cache"))
    url = f"memory://team-{time.time_ns()}/runs"
    system, _ = fsspec.core.url_to_fs(url)
    system.makedirs(url.removeprefix("memory:/"), exist_ok=True)
    mirror = Mirror(url)
    assert mirror.refresh() == 0
    run = start(tmp_path / "mine" / "grpo")
    run.log({"loss": 1.0}, step=1)
    upload_changes(RunDir(tmp_path / "mine" / "grpo"), f"{url}/grpo")
    with serving(mirror.folder) as client:
        mirror.refresh()
        copy = mirror.folder / "grpo"
        until(lambda: [line["run"] for line in client.api("runs").facts["runs"]] == ["grpo"])
        assert open_run(copy).status == "running"
        inode = RunDir(copy).train_log.stat().st_ino
        run.log({"loss": 0.5}, step=2)
        run.finish()
        upload_changes(RunDir(tmp_path / "mine" / "grpo"), f"{url}/grpo")
        mirror.refresh()
        assert RunDir(copy).train_log.stat().st_ino == inode, "only the end of a log is fetched"
        assert RunDir(copy).train_log.read_bytes() == RunDir(tmp_path / "mine" / "grpo").train_log.read_bytes()
        assert (open_run(copy).rows, open_run(copy).status) == (2, "finished")
        assert mirror.refresh() == 0
        system.rm(f"{url.removeprefix('memory:/')}/grpo", recursive=True)
        mirror.refresh()
        assert not RunDir(copy).holds_run


def test_a_run_whose_heartbeat_stays_the_same_is_not_live(tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    monkeypatch.setenv("RLVITALS_CACHE", str(tmp_path / "cache"))
    run = start(tmp_path / "shared" / "old")
    run.log({"loss": 1.0}, step=1)
    place = RunDir(tmp_path / "shared" / "old")
    lock = json.loads(place.lock.read_text())
    place.lock.write_text(json.dumps(lock | {"boot": "another machine's", "since": time.time() - 300}))
    place.heartbeat.write_text(f"{time.time() - 300:.3f}\n")
    mirror = Mirror(f"file://{tmp_path / 'shared'}")
    mirror.refresh()
    assert open_run(mirror.folder / "old").status == "interrupted"
    place.heartbeat.write_text(f"{time.time() - 300:.3f} \n")  # the heartbeat changes, with a clock that is slow
    mirror.refresh()
    assert open_run(mirror.folder / "old").status == "running"
    run.finish()


def nginx(block: str, own: int, folder: Path) -> list[str]:
    """The command of nginx with the documented server block, on another port and with files of a test."""
    server = block.replace("listen 443 ssl", f"listen 127.0.0.1:{own} ssl")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; {places}\n{server}\n}}\n"
    )
    return [program_of(nginx), "-c", str(configuration), "-p", str(folder), "-e", str(folder / "error.log")]


def caddy(block: str, own: int, folder: Path) -> list[str]:
    """The same for Caddy."""
    names = f"https://runs.example.org:{own}, https://localhost:{own}"
    site = block.replace("runs.example.org {", f"{names} {{\n    bind 127.0.0.1", 1)
    own_places = f"admin off\n    storage file_system {folder}/caddy"
    configuration = folder / "Caddyfile"
    configuration.write_text(f"{{\n    {own_places}\n    auto_https disable_redirects\n}}\n{site}")
    return [program_of(caddy), "run", "--config", str(configuration), "--adapter", "caddyfile"]


def program_of(proxy) -> str:
    """The path of the proxy's program. Debian puts nginx in a folder that only root has on its PATH."""
    found = shutil.which(proxy.__name__, path=f"{os.environ['PATH']}:/usr/sbin")
    return found or pytest.skip(f"the test of this proxy needs {proxy.__name__}: apt-get install {proxy.__name__}")


@pytest.fixture(params=[nginx, caddy], ids=["nginx", "caddy"])
def proxied(request, tmp_path):
    """A real proxy, configured as in docs/sharing.md, in front of the port that a test serves on."""
    program_of(request.param)  # before the test opens a run: a skip would leave it open
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the test of the proxies needs openssl: apt-get install openssl")
    names = "subjectAltName=DNS:runs.example.org,DNS:localhost"
    wanted = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=runs.example.org", "-addext", names]
    certificate = [openssl, "req", "-x509", *wanted]
    certificate += ["-keyout", str(tmp_path / "runs.key"), "-out", str(tmp_path / "runs.pem")]
    subprocess.run(certificate, check=True, capture_output=True)
    kind = request.param.__name__
    block = re.search(rf"```{kind}\n(.*?)```", (REPO / "docs" / "sharing.md").read_text(), re.DOTALL)[1]
    started = []

    def start_proxy(port: int) -> int:
        own = free_port()
        settings = block.replace("127.0.0.1:8642", f"127.0.0.1:{port}").replace("/etc/ssl/", f"{tmp_path}/")
        command = request.param(settings, own, tmp_path)
        own_home = {**os.environ, **dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), str(tmp_path))}
        with (tmp_path / "proxy.log").open("wb") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, env=own_home))
        until(lambda: _answers(own))
        return own

    yield start_proxy
    for process in started:
        process.terminate()
        process.wait(10)


def test_behind_a_proxy_with_tls_and_a_prefix(tmp_path, tokens, proxied, monkeypatch):
    folder = tmp_path / "runs"
    run = start(folder / "one")
    run.log({"loss": 1.0}, step=1)
    team = Team(people=TokenFile(tokens), inbox=Inbox(folder), push_token=BEN)
    with serving(folder, team=team, allow_hosts=["runs.example.org"]) as client:
        port = proxied(client.port)
        host = f"runs.example.org:{port}"

        def ask(path, name=host, **headers):
            with _through_tls(port, tmp_path / "runs.pem") as connection:
                lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
                connection.sendall(f"GET {path} HTTP/1.1\r\nhost: {name}\r\n{lines}connection: close\r\n\r\n".encode())
                return parse(b"".join(iter(lambda: connection.recv(65536), b"")))

        assert ask("/api/runs").status == 401
        foreign = ask("/api/runs", name="evil.example")  # Caddy does not know this site and sends an empty answer
        assert foreign.status == 403 or (foreign.status, foreign.body) == (200, b"")
        for prefix in ("", "/team"):
            welcome = ask(f"{prefix}/?token={ANN}")
            assert (welcome.status, welcome.headers["location"]) == (303, "./")
            cookie = welcome.headers["set-cookie"].partition(";")[0]
            page = ask(f"{prefix}/", cookie=cookie)
            assert page.status == 200
            script = re.search(r'src="([^"]+)"', page.body.decode())[1]
            assert ask(f"{prefix}/{script}", cookie=cookie).status == 200
            answer = ask(f"{prefix}/api/runs", cookie=cookie, origin=f"https://{host}")
            assert '"run":"one"' in answer.body.decode()
        assert ask("/api/runs", cookie=cookie, origin="https://evil.example").status == 403

        with _through_tls(port, tmp_path / "runs.pem") as connection:
            request = f"GET /team/api/live?run=one HTTP/1.1\r\nhost: {host}\r\ncookie: {cookie}\r\n\r\n"
            connection.sendall(request.encode())
            with connection.makefile("rb") as stream:
                received = events(stream)
                assert next(received)[0] == "status"
                began = time.monotonic()
                run.log({"loss": 0.5}, step=2)
                assert next(received)[:2] == ("rows", {"step": 2, "updated": ANY, "rows": 1, "values": {"loss": 0.5}})
                assert time.monotonic() - began < 5, "nothing between holds events back"
        run.finish()

        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "runs.pem"))
        for url in (f"https://localhost:{port}", f"https://localhost:{port}/team/"):
            Delivery(RunDir(folder / "one"), PushServer(url, BEN), "pushed").send(patience=5)
        assert open_run(folder / "pushed").rows == 2


def _through_tls(port: int, certificate: Path) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(certificate))
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    return context.wrap_socket(plain, server_hostname="runs.example.org")


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
