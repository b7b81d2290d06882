"""Logs behind a URL: fetched by fsspec from a real server on this machine, read, and removed."""

from __future__ import annotations

import gzip
import http.server
import json
import socket
import sys
import tempfile
import threading
import zipfile

import pytest

pytest.importorskip("fsspec", reason="needs fsspec")
pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for http://")

import rlvitals
from rlvitals.cli.main import main
from rlvitals.errors import ConfigError, MissingDependency, RunError
from rlvitals.importers import LogTail, NotALog, read_log, registry
from rlvitals.views.logs import open_any

ROWS = [{"step": step, "loss": 1 / step, "reward": 0.5} for step in range(1, 21)]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files. A request for `/status/403/...` gets that status."""

    def send_head(self):
        if self.path.startswith("/status/"):
            return self.send_error(int(self.path.split("/")[2]))
        return super().send_head()

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The folder and the address of a server."""
    folder = tmp_path_factory.mktemp("served")

    def handler(*arguments):
        return Quiet(*arguments, directory=str(folder))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("RLVITALS_CACHE", str(tmp_path / "cache"))
    yield
    assert list(folder.iterdir()) == []


def test_a_log_behind_a_url_is_read_and_the_copy_removed(server):
    folder, address = server
    (folder / "train.jsonl").write_bytes(JSONL)
    log = read_log(f"{address}/train.jsonl")
    assert (log.format, log.rows, log.path.name) == ("jsonl", ROWS, "train.jsonl")
    assert log.notes[0] == f"read from {address}/train.jsonl"


def test_a_packed_log_behind_a_url_is_read_by_every_verb(server, tmp_path, capsys):
    folder, address = server
    (folder / "train.jsonl.gz").write_bytes(gzip.compress(JSONL))
    url = f"{address}/train.jsonl.gz"
    report = rlvitals.check(url)
    assert (report.points, report.format) == (20, "jsonl")
    assert f"read from {url}" in report.notes
    assert open_any(url).rows == 20
    assert main(["import", url, "--to", str(tmp_path / "run")]) == 0
    assert "20 rows from train.jsonl.gz (jsonl)" in capsys.readouterr().out
    assert rlvitals.open_run(tmp_path / "run").rows == 20


def test_a_recorded_run_behind_a_url_is_still_a_run(tmp_path):
    from rlvitals.store.remote import upload

    with rlvitals.start(tmp_path / "run", monitor=False) as run:
        run.log({"loss": 0.5}, step=1)
    upload(tmp_path / "run", "memory://served/run")
    assert rlvitals.check("memory://served/run").format == "run"


def test_what_is_not_there_and_what_is_no_log_are_reported_with_the_url(server):
    folder, address = server
    for name in ("nothing.jsonl", "nothing", "status/403/train.jsonl", "status/500/run"):
        with pytest.raises(RunError, match=f"cannot read {address}/{name}"):
            rlvitals.check(f"{address}/{name}")
    (folder / "notes.txt").write_text("Dear diary\n")
    with pytest.raises(NotALog, match=f"{address}/notes.txt is not a training log: .*no line holds"):
        rlvitals.check(f"{address}/notes.txt")


def test_a_server_that_does_not_answer_is_reported_as_such():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(RunError, match=f"train.jsonl: ClientConnectorError: Cannot connect to host 127.0.0.1:{port}"):
        read_log(f"http://127.0.0.1:{port}/train.jsonl")


def test_a_secret_in_a_url_is_masked(server):
    folder, address = server
    (folder / "train.jsonl").write_bytes(JSONL)
    log = rlvitals.check(f"{address}/train.jsonl?X-Amz-Credential=a/b&X-Amz-Signature=0123456789abcdef0123456789abcdef")
    assert (log.source, log.points) == ("train.jsonl", 20)
    assert "0123456789abcdef" not in log.notes[0]


def test_one_of_several_logs_behind_a_url_is_chosen(server):
    folder, address = server
    with zipfile.ZipFile(folder / "logs.zip", "w") as archive:
        archive.writestr("a.jsonl", JSONL)
        archive.writestr("b.jsonl", JSONL[:100])
    assert len(read_log(f"{address}/logs.zip#a.jsonl").rows) == 20


def test_what_is_too_large_is_not_fetched(server, monkeypatch):
    folder, address = server
    (folder / "large.jsonl").write_bytes(JSONL * 2000)
    monkeypatch.setattr(registry, "MOST_BYTES", 2**20)
    with pytest.raises(RunError, match=r"is larger than 1 MiB, the download limit\. Download it"):
        read_log(f"{address}/large.jsonl")


def test_a_folder_of_a_store_without_a_run_asks_for_a_file():
    import fsspec

    with fsspec.open("memory://logs/train.jsonl", "wb") as file:
        file.write(JSONL)
    assert len(read_log("memory://logs/train.jsonl").rows) == 20
    with pytest.raises(RunError, match=r"is a folder without a run\. Name the log in it"):
        rlvitals.check("memory://logs")


def test_a_missing_package_or_protocol_is_named(monkeypatch):
    with pytest.raises(ConfigError, match=r"nosuch://host/train\.jsonl cannot be opened: .*nosuch"):
        read_log("nosuch://host/train.jsonl")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependency, match=r"pip install 'rlvitals\[remote\]'"):
        read_log("https://host/train.jsonl")


def test_a_url_cannot_be_followed(server):
    with pytest.raises(NotALog, match="cannot be followed, only read"):
        LogTail(f"{server[1]}/train.jsonl")
    assert main(["check", "--follow", f"{server[1]}/train.jsonl"]) == 64
