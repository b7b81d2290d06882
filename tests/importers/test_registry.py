"""Which importer reads a log, plug-ins, and restarts inside a file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest
from format_samples import SAMPLES, sample_bytes

import rlvitals
from conftest import REPO
from rlvitals.errors import NotALog
from rlvitals.importers import find_log, importer_for, is_one_log, logs_below, read_log
from rlvitals.importers.base import Importer
from rlvitals.importers.registry import readable, shipped
from rlvitals.importers.steps import restarts


def test_each_importer_has_a_sample_and_says_what_it_reads():
    assert {importer.name for importer in shipped()} == SAMPLES.keys(), (
        "format_samples.py has a small log of each format"
    )
    assert readable().split("; ") == [text for importer in shipped() for text in importer.description.split("; ")]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_log_is_recognised_by_its_first_bytes_whatever_its_name(tmp_path, name):
    for number, sample in enumerate(SAMPLES[name]):
        path = tmp_path / str(number) / "metrics.csv"
        path.parent.mkdir()
        path.write_bytes(sample_bytes(sample))
        assert importer_for(path).name == name, sample


CONTENTS = {
    ".jsonl": '{"step": 1, "loss": 0.5}\n',
    ".json": '{"log_history": [{"step": 1, "loss": 0.5}]}',
    ".csv": "step,loss\n1,0.5\n",
    ".log": "step:1 - actor/pg_loss:0.5\n",
}


def make(folder, *files):
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CONTENTS.get(path.suffix, "x"))
    return folder


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["run-1.wandb", "trainer_state.json"], "run-1.wandb"),
        (["checkpoint-9/trainer_state.json", "checkpoint-10/trainer_state.json"], "checkpoint-10/trainer_state.json"),
        (["checkpoint-9/trainer_state.json", "a.jsonl", "b.jsonl"], "checkpoint-9/trainer_state.json"),
        (["output/checkpoint-9/trainer_state.json", "README.md"], "output/checkpoint-9/trainer_state.json"),
        (["run/output/checkpoint-10/trainer_state.json", "run/output/checkpoint-9/trainer_state.json"],
         "run/output/checkpoint-10/trainer_state.json"),
        (["deep/below/events.out.tfevents.1.host", "notes.txt"], "deep/below"),
        (["deep/below/events.out.tfevents.1.host", "a.jsonl"], "a.jsonl"),
        (["files/output.log", "a.jsonl"], "files/output.log"),
        (["files/wandb-summary.json", "files/config.yaml"], "files/wandb-summary.json"),
        (["files/wandb-history.jsonl", "files/wandb-summary.json"], "files/wandb-history.jsonl"),
        (["a.jsonl", "wandb/run-1/run-1.wandb"], "a.jsonl"),
        (["notes.txt", "wandb/run-1/run-1.wandb"], "wandb/run-1/run-1.wandb"),
        (["output/runs/a/events.out.tfevents.1.host", "wandb/run-1/run-1.wandb"], "wandb/run-1/run-1.wandb"),
        (["progress.csv", "notes.txt"], "progress.csv"),
        (["train.log", "metrics.jsonl", "eval_metrics.jsonl"], "metrics.jsonl"),
        (["train_metrics.jsonl", "metrics.jsonl"], "train_metrics.jsonl"),
        (["train.log", "data.jsonl"], "train.log"),
        (["metrics.csv", "metrics.jsonl", "config.json"], "metrics.jsonl"),
        (["src/train.txt", "logs/console/train.log", "config.json"], "logs/console/train.log"),
        (["metrics.jsonl", "node_modules/train.jsonl", ".hidden/train.jsonl"], "metrics.jsonl"),
    ],
)  # fmt: skip
def test_the_log_of_a_folder_is_found_by_marks_then_names_then_below(tmp_path, files, found):
    make(tmp_path, *files)
    (tmp_path / "config.json").exists() and (tmp_path / "config.json").write_text('{"learning_rate": 1e-5}')
    assert find_log(tmp_path) == tmp_path / found


@pytest.mark.parametrize(("saved", "found"), [(200, "trainer_state.json"), (100, "checkpoint-200/trainer_state.json")])
def test_the_state_that_was_saved_last_is_read(tmp_path, saved, found):
    """The state is saved next to the checkpoints at the end of training. A resumed training makes it outdated."""
    make(tmp_path, "checkpoint-9/trainer_state.json", "checkpoint-200/trainer_state.json")
    state = {"best_global_step": 900, "global_step": saved, "log_history": [{"step": 1, "loss": 0.5}]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state, indent=2))
    assert find_log(tmp_path) == tmp_path / found


def test_logs_that_are_equally_likely_are_listed_with_the_command_for_each(tmp_path):
    make(tmp_path, "a b.jsonl", "b.jsonl", "config.txt")
    with pytest.raises(NotALog) as caught:
        find_log(tmp_path)
    first, second = (tmp_path / name for name in ("a b.jsonl", "b.jsonl"))
    assert f"Name one of them: rlvitals check '{first}'; rlvitals check {second}" in str(caught.value)


def test_of_several_logs_the_report_names_those_that_were_not_read(tmp_path):
    make(tmp_path, "train.log", "metrics.jsonl")
    assert read_log(tmp_path).notes[0] == "read metrics.jsonl; other logs beside it: train.log"


def test_the_newest_of_the_runs_below_is_read_and_the_others_are_named(tmp_path):
    for number in (2, 10, 9):
        make(tmp_path, f"out/run_{number}/trainer_state.json")
        os.utime(tmp_path / f"out/run_{number}/trainer_state.json", (1, 1))
    log = read_log(tmp_path)
    assert log.path == tmp_path / "out/run_10/trainer_state.json"
    assert log.notes == [
        "the folder holds 3 runs: read out/run_10, the newest. Others, to be passed by their path: out/run_9, out/run_2"
    ]
    os.utime(tmp_path / "out/run_2/trainer_state.json", (2, 2))
    assert find_log(tmp_path) == tmp_path / "out/run_2/trainer_state.json"


def test_a_newest_run_without_rows_is_skipped(tmp_path):
    make(tmp_path, "first/trainer_state.json", "second/trainer_state.json")
    (tmp_path / "second/trainer_state.json").write_text('{"log_history": []}')
    os.utime(tmp_path / "first/trainer_state.json", (1, 1))
    log = read_log(tmp_path)
    assert log.path == tmp_path / "first/trainer_state.json"
    (note,) = log.notes
    assert note.startswith(
        "read first/trainer_state.json, an older run of the folder: the newest, second/trainer_state.json, has no rows "
        "(its JSON holds no list of rows"
    )


def test_what_lies_in_a_recorded_run_is_no_log_of_its_own(tmp_path):
    with rlvitals.start(tmp_path / "kto", monitor=False) as run:
        run.log({"loss": 0.5}, step=1)
    make(tmp_path, "kto/tensorboard/events.out.tfevents.1.host", "other/events.out.tfevents.1.host")
    assert logs_below(tmp_path) == [tmp_path / "other"]


def test_an_aim_repository_says_how_to_export_it(tmp_path):
    (tmp_path / ".aim" / "meta").mkdir(parents=True)
    with pytest.raises(NotALog, match=r"Aim repository.* Export it where aim is installed"):
        read_log(tmp_path)
    make(tmp_path, "train.jsonl")
    assert len(read_log(tmp_path).rows) == 1


def test_a_file_of_one_run_takes_no_choice(tmp_path):
    make(tmp_path, "train.jsonl", "odd#name.jsonl")
    assert len(read_log(tmp_path / "odd#name.jsonl").rows) == 1
    with pytest.raises(NotALog, match="a jsonl file holds one run: 'kto' chooses none"):
        read_log(tmp_path / "train.jsonl#kto")


@pytest.mark.parametrize(
    ("files", "is_one"),
    [
        (["run-1.wandb"], True),
        (["checkpoint-9/trainer_state.json"], True),
        (["files/output.log"], True),
        (["events.out.tfevents.1.host"], True),
        (["train/events.out.tfevents.1.host", "validation/events.out.tfevents.1.host"], True),
        (["first/events.out.tfevents.1.host", "second/events.out.tfevents.1.host"], False),
        (["a.jsonl"], False),
        (["files/wandb-summary.json"], True),
        (["output/checkpoint-9/trainer_state.json"], False),
        (["meta.yaml", "metrics/train/loss"], True),
        (["meta.yaml", "run/meta.yaml", "run/metrics/loss"], False),
        ([], False),
    ],
)
def test_a_folder_is_one_log_by_the_marks_of_an_importer(tmp_path, files, is_one):
    make(tmp_path, *files)
    assert is_one_log(tmp_path) is is_one


# Plug-ins: distributions as pip installs them, in separate processes.

SICK = """
from rlvitals.importers import Importer

class Sick(Importer):
    name = "sick"
    description = "nothing"

    @classmethod
    def recognises(cls, head, path):
        if head.startswith(b"#sick"):
            return True
        raise RuntimeError("no idea")

    def rows(self, path):
        raise ZeroDivisionError("while reading")
"""


def documented():
    """The class and the entry point that the docs show."""
    page = (REPO / "docs" / "importing.md").read_text()
    (code,) = re.findall(r"```python\n([^`]*class PipesImporter.*?)```", page, re.DOTALL)
    (entry,) = re.findall(r'rlvitals.importers"\]\npipes = "mypackage.(\S+)"\n', page)
    return code, entry


def install(folder, name, code, entry):
    """Creates the files that pip leaves in site-packages."""
    (folder / f"{name}.py").write_text(code)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[rlvitals.importers]\n{name} = {entry}\n")


@pytest.fixture
def python(tmp_path, child_environment):
    """Run code where the plug-ins in `site` are installed."""
    site = tmp_path / "site"
    site.mkdir()
    environment = {**child_environment, "PYTHONPATH": os.pathsep.join([str(site), str(REPO / "src")])}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
        )

    return run


def test_a_log_of_a_plug_in_s_format_is_checked_followed_and_imported(tmp_path, python):
    code, entry = documented()
    install(tmp_path / "site", "pipes", code, entry)
    rows = "".join(f"step={n}|loss={1 / n}|reward=0.{n}\n" for n in range(1, 8))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train.pipes").write_text(f"{rows}step=8|loss=0.1|reward=")  # its writer was killed
    code = """
        import rlvitals
        from rlvitals.importers import LogTail, read_log
        log = read_log("folder")
        tail = LogTail("folder")
        assert (log.format, len(log.rows), log.rows[1]) == ("pipes", 8, {"step": 2, "loss": 0.5, "reward": 0.2}), log
        assert tail.poll().rows == log.rows[:7] and tail.format == "pipes"
        assert tail.finish().rows == log.rows[7:] == [{"step": 8, "loss": 0.1}]
        assert rlvitals.check("folder/train.pipes").format == "pipes"
    """
    done = python("-c", textwrap.dedent(code))
    assert (done.returncode, done.stderr) == (0, "")
    done = python("-m", "rlvitals.cli.main", "import", "folder", "--to", "run")
    assert "8 rows from" in done.stdout, done.stderr
    done = python("-m", "rlvitals.cli.main", "check", "site/pipes-1.0.dist-info/METADATA")
    assert "lines of name=value pairs between bars" in done.stderr


@pytest.mark.parametrize(
    ("code", "entry", "message"),
    [
        ("import no_such_package_here", "broken:X", "ModuleNotFoundError: No module named 'no_such_package_here'"),
        ("X = 1", "broken:X", "it is not a subclass of rlvitals.importers.Importer with a name"),
        ("", "broken:Missing", "AttributeError"),
        (SICK, "broken:Sick", "RuntimeError: no idea"),
    ],
)
def test_a_broken_plug_in_is_reported_once_and_skipped(tmp_path, python, code, entry, message):
    install(tmp_path / "site", "broken", code, entry)
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    code = """
        from rlvitals.importers import read_log
        assert [len(read_log("log.jsonl").rows) for _ in range(3)] == [1, 1, 1]
    """
    done = python("-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(message) == done.stderr.count("is skipped") == 1
    assert "broken" in done.stderr or "'sick'" in done.stderr


def test_a_plug_in_that_fails_on_a_file_does_not_hide_the_others_of_a_folder(tmp_path, python):
    install(tmp_path / "site", "sick_plugin", SICK, "sick_plugin:Sick")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.sick").write_text("#sick\n")
    (tmp_path / "logs" / "b.jsonl").write_text("".join(f'{{"step": {n}, "loss": 0.5}}\n' for n in range(9)))
    code = """
        import rlvitals
        from rlvitals.importers import LogTail, read_log, NotALog
        reports = rlvitals.check("logs")
        assert [str(report.source) for report in reports] == ["logs/b.jsonl"], reports
        assert LogTail("logs/a.sick").poll().rows == []
        try:
            read_log("logs/a.sick")
        except NotALog as error:
            print(error)
    """
    done = python("-c", textwrap.dedent(code))
    assert "the importer 'sick' failed on it (ZeroDivisionError: while reading)" in done.stdout, done.stderr


def test_plug_ins_are_looked_for_only_when_a_log_is_read(tmp_path, python):
    install(tmp_path / "site", "loud", "print('loaded')", "loud:X")
    code = "import rlvitals, rlvitals.importers; run = rlvitals.start('run', monitor=False); run.log({'a': 1}, step=1)"
    assert "loaded" not in python("-c", code + "; run.finish(); rlvitals.open_run('run').rows").stdout
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    assert "loaded" in python("-c", "from rlvitals.importers import read_log; read_log('log.jsonl')").stdout


def test_ours_are_importers_and_a_defect_of_ours_is_not_hidden(tmp_path, monkeypatch):
    assert all(issubclass(importer, Importer) for importer in shipped())
    path = tmp_path / "log"
    path.write_text(CONTENTS[".jsonl"])
    monkeypatch.setattr(importer_for(path), "feed", lambda self, line: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        read_log(path)


def test_an_error_names_what_was_tried(tmp_path):
    (tmp_path / "log").write_text("nothing was trained today\n")
    with pytest.raises(NotALog, match=r"numbers\. Tried: console\. What can be read: W&B runs: their .wandb file"):
        read_log(tmp_path / "log")


# Restarts inside a file.


def row(step, *names):
    return {"step": step, **dict.fromkeys(names, 0.5)}


@pytest.mark.parametrize(
    ("names", "is_restart"),
    [
        (["loss", "a", "b"], False),  # one of three was logged at a later step: a late evaluation with a common name
        (["loss", "a"], False),  # half of them
        (["loss", "kl", "a"], True),
        (["loss", "kl", "reward"], True),
        (["a", "b"], False),
    ],
)
def test_a_file_starts_again_where_most_of_a_row_was_logged_at_a_later_step(names, is_restart):
    rows = [row(step, "loss", "kl", "reward") for step in (1, 2, 3)]
    assert restarts([*rows, row(2, *names)]) == ([3] if is_restart else [])
