"""Runs behind URLs. The memory and local file systems of fsspec replace object storage."""

from __future__ import annotations

import fsspec
import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.errors import ConfigError, RunError, RunExists, RunLocked, RunNotFound
from rlvitals.store.archive import compact_logs
from rlvitals.store.layout import RunDir
from rlvitals.store.remote import cache_folder, fetch, is_url, upload, upload_changes


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RLVITALS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def run_path(tmp_path):
    path = tmp_path / "here" / "kto"
    with rlvitals.start(path, name="kto-7b", config={"lr": 5e-7}, monitor=False) as run:
        for step in range(10):
            run.log({"loss": 1.0 / (step + 1)}, step=step)
        run.log_eval({"accuracy": 0.5}, step=9)
    (path / "checkpoint-5").mkdir()
    (path / "checkpoint-5" / "weights.bin").write_bytes(b"x" * 1000)
    (path / "logs" / "tensorboard").mkdir()
    (path / "logs" / "tensorboard" / "events.out.tfevents.1").write_bytes(b"x")
    rlvitals.open_run(path).series("loss")  # makes an index
    return path


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    """A URL that is empty before and after the test."""
    if request.param == "file":
        yield f"file://{tmp_path}/bucket/kto"
        return
    yield "memory://bucket/kto"
    fsspec.filesystem("memory").store.clear()


class Counted:
    """Counts the files that are opened on a real file system, and from which byte on they are read."""

    def __init__(self, monkeypatch, url):
        self.names, self.starts = [], []
        system = type(fsspec.core.url_to_fs(url)[0])
        whole, part = system.get_file, system.cat_file

        def get_file(own, path, *rest, **options):
            self.names.append(path.rpartition("/")[2])
            return whole(own, path, *rest, **options)

        def cat_file(own, path, start=None, end=None, **options):
            self.names.append(path.rpartition("/")[2])
            self.starts.append(start)
            return part(own, path, start=start, end=end, **options)

        monkeypatch.setattr(system, "get_file", get_file)
        monkeypatch.setattr(system, "cat_file", cat_file)


def test_an_uploaded_run_reads_as_it_did(run_path, url):
    upload(run_path, url)
    near, far = rlvitals.open_run(run_path), rlvitals.open_run(url)
    assert far.series("loss").values.tolist() == near.series("loss").values.tolist()
    assert far.series("accuracy").values.tolist() == [0.5]
    assert (far.name, far.status, far.config, far.info.id) == (near.name, "finished", near.config, near.info.id)


def test_checkpoints_the_index_and_trackers_files_stay_behind(run_path, url):
    upload(run_path, url)
    system, root = fsspec.core.url_to_fs(url)
    names = {path.removeprefix(root).lstrip("/") for path in system.find(root)}
    assert names == {
        "run.json", "config.json", "attempts.jsonl", "heartbeat", "logs/training_metrics.jsonl",
        "logs/eval_metrics.jsonl", "eval_logs/eval_step_0009.json",
    }  # fmt: skip


def test_only_what_changed_is_read_again(run_path, url, monkeypatch):
    upload(run_path, url)
    counted = Counted(monkeypatch, url)
    rlvitals.open_run(url)
    assert len(counted.names) == 7
    counted.names.clear()
    assert rlvitals.open_run(url).rows == 10
    assert counted.names == []
    system, root = fsspec.core.url_to_fs(url)
    with system.open(f"{root}/logs/training_metrics.jsonl", "ab") as file:
        file.write(b'{"step":10,"timestamp":1.0,"attempt":1,"loss":0.05}\n')
    assert rlvitals.open_run(url).rows == 11
    assert counted.names == ["training_metrics.jsonl"]
    assert len(counted.starts) == 1  # only its end: the first rows are already local


def test_a_run_that_is_still_written_reads_as_running(url, tmp_path):
    with rlvitals.start(tmp_path / "live", monitor=False) as run:
        run.log({"loss": 1.0}, step=0)
        upload_changes(RunDir(tmp_path / "live"), url)
        assert rlvitals.open_run(url).status == "running"
    upload(tmp_path / "live", url)
    assert rlvitals.open_run(url).status == "finished"


def test_a_packed_log_takes_the_place_of_the_log_in_the_copy(run_path, url):
    upload(run_path, url)
    rlvitals.open_run(url)
    compact_logs(rlvitals.open_run(run_path)._dir)
    upload(run_path, url)
    assert rlvitals.open_run(url).rows == 10
    copied = {path.name for path in (fetch(url) / "logs").iterdir()}
    assert "training_metrics.jsonl.archive" in copied
    assert "training_metrics.jsonl" not in copied


def test_the_verbs_take_a_url(run_path, url, tmp_path, capsys):
    upload(run_path, url)
    assert main(["show", url]) == 0
    assert "kto-7b" in capsys.readouterr().out
    assert main(["export", url, "--to", "csv", "--output", str(tmp_path / "rows.csv")]) == 0
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 11
    assert main(["check", url]) == main(["check", str(run_path)])
    assert rlvitals.check(url).points == rlvitals.check(run_path).points == 11
    assert main(["compact", url]) == 64
    assert "before you upload" in capsys.readouterr().err


def test_another_run_is_not_written_over_and_a_running_one_not_uploaded(run_path, url, tmp_path):
    upload(run_path, url)
    assert upload(run_path, url) == 7
    with rlvitals.start(tmp_path / "other", monitor=False) as run:
        run.log({"loss": 1.0}, step=0)
        with pytest.raises(RunLocked, match="still being written"):
            upload(tmp_path / "other", url)
    with pytest.raises(RunExists, match="another run"):
        upload(tmp_path / "other", url)
    upload(tmp_path / "other", url, overwrite=True)
    other = rlvitals.open_run(url)
    assert (other.rows, other.metrics) == (1, ["loss"])  # nothing of the first run is left


def test_what_cannot_be_opened_says_why(url, monkeypatch):
    with pytest.raises(RunNotFound, match="no run in"):
        rlvitals.open_run(url)
    with pytest.raises(ConfigError, match="nonsense"):
        rlvitals.open_run("nonsense://me:secret@bucket/run")
    with pytest.raises(RunNotFound):
        rlvitals.open_run("out/nothing")

    def refuse(*_, **__):
        raise ConnectionResetError("reset by peer, key=sk-abcdefghijklmnopqrstuvwx")

    monkeypatch.setattr(type(fsspec.core.url_to_fs(url)[0]), "info", refuse)
    with pytest.raises(RunError, match=r"cannot read .*reset by peer"):
        rlvitals.open_run(url)


def test_logins_in_a_url_are_neither_shown_nor_kept(tmp_path):
    with pytest.raises(ConfigError) as raised:
        rlvitals.open_run("nonsense://me:hunter2@bucket/run")
    assert "hunter2" not in str(raised.value)
    assert not cache_folder().exists()


def test_a_name_that_leads_out_of_the_copy_is_not_written(run_path):
    upload(run_path, "memory://bucket/kto")
    system = fsspec.filesystem("memory")
    system.store["/bucket/kto/logs/../../../outside"] = system.store["/bucket/kto/run.json"]
    try:
        copy = fetch("memory://bucket/kto")
        assert not any(path.name == "outside" for path in cache_folder().parent.rglob("*"))
        assert (copy / "run.json").exists()
    finally:
        system.store.clear()


@pytest.mark.parametrize("path", ["out/kto", "/out/kto", "C:/runs", "C:\\runs", "./s3:/x"])
def test_paths_are_no_urls(path):
    assert not is_url(path)
