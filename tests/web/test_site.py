"""What a shared site contains, and what it does not."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path

import pytest

import rlvitals
from health_lines import finding_line
from rlvitals.cli.flags import Parser
from rlvitals.cli.main import main
from rlvitals.errors import RlvitalsError
from rlvitals.records import Finding, Group, Rollout, ToolCall, Turn
from rlvitals.store.findings import append_event
from rlvitals.store.layout import RunDir
from rlvitals.views.run import open_run
from rlvitals.web.api import ANSWERS
from rlvitals.web.folder import Folder
from rlvitals.web.site import SHARED, chosen_groups, copy_runs, key_of, make_site

SECRET = "sk-proj-0123456789abcdefghijklmn"
HIDDEN = {
    "secret in the settings": SECRET,
    "redacted setting": "project-bluebird",
    "host": "gpu-node-17.example.org",
    "home": "/home/",
    "user": "annabelle",
    "path": "/mnt/vault/sets",
    "branch": "fix-of-bluebird",
    "command": "train-with-this.py",
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "kto"
    settings = {
        "learning_rate": 1e-5, "model": "/home/annabelle/models/qwen", "api_key": SECRET,
        "codename": "project-bluebird",
        "data": {"train": "/mnt/vault/sets/easy.parquet", "more": ["/mnt/vault/sets/hard.parquet"]},
        "optim": {"warmup_secret_plan": True},
    }  # fmt: skip
    run = rlvitals.start(folder, algorithm="grpo", display="none", hardware=False, config=settings)
    for step in range(1, 31):
        odd = {"internal/odd": 0.123456, "internal/nan": float("nan"), "gpu/gpu-node-17.example.org/use": 0.5}
        run.log({"loss": 1 / step, "reward": step / 30, "note": "from project-bluebird", **odd}, step=step)
        call = ToolCall("search", {"query": "whereabouts"}, "seen in /home/annabelle/notes.txt")
        turns = (Turn(f"The prompt says {SECRET}; see /usr/bin/env.", (call,)), Turn("It is Paris."))
        run.log_groups(
            [
                Group(f"Capital {number}?", tuple(Rollout(turns, reward=float(one)) for one in range(4)))
                for number in range(2)
            ],
            step=step,
        )
    example = {"answer": "by annabelle in Oslo", "internal/loss": 0.654321, "gpu-node-17.example.org": 1}
    run.log_eval({"accuracy": 0.5, "internal/accuracy": 0.25, "examples": [example]}, step=30)
    run.finish()
    found = Finding("kl_high", "kl", "warning", 3, 2, "KL is high on gpu-node-17.example.org", metrics=("loss",))
    append_event(RunDir(folder), finding_line(found))
    card = json.loads((folder / "run.json").read_text())
    card |= {
        "host": "gpu-node-17.example.org",
        "command": "python train-with-this.py --to /mnt/vault/sets",
        "error": "no /mnt/vault/sets/x",
        "git": {"commit": "0123abc", "branch": "fix-of-bluebird"},
    }
    (folder / "run.json").write_text(json.dumps(card))
    attempts = folder / "attempts.jsonl"
    resumed = {"from_checkpoint": "/mnt/vault/sets/checkpoint-5", "changed": {"codename": ["project-bluebird", "b"]}}
    attempts.write_text(json.dumps(json.loads(attempts.read_text()) | resumed) + "\n")
    return folder


def everything(site: Path) -> dict[str, str]:
    """Every file of a site as text."""
    found = {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    plain = {name: gzip.decompress(data) if name.endswith(".gz") else data for name, data in found.items()}
    return {name: data.decode(errors="replace") for name, data in plain.items()}


def share(run, to, *flags) -> dict[str, str]:
    assert main(["share", str(run), "--to", str(to), *flags]) == 0
    return everything(Path(to))


def answers(site: Path, address: str, run: str = "kto") -> dict:
    index = json.loads((site / "site.json").read_text())
    return json.loads(gzip.decompress((site / index["addresses"][address]["files"][run]).read_bytes()))


def test_copies_that_are_read_once_answer_as_a_folder_that_looks_each_time(tmp_path):
    for number, name in enumerate(("one", "two")):
        run = rlvitals.start(tmp_path / name, display="none", hardware=False, monitor=False, config={"seed": number})
        for step in range(1, 4 + number):
            run.log({"reward": step + 10.0 * number, name: 1.0}, step=step)
        run.finish()
    paths = [tmp_path / "one", tmp_path / "two"]
    copies = copy_runs(paths, tmp_path / "copies", patterns=(), texts=True, rollouts=8, progress=lambda said: None)
    made, wanted = (make_site(folder, "both").files for folder in (copies, Folder(tmp_path / "copies")))
    cards = [json.loads(files.pop("site.json")) | {"made": 0} for files in (made, wanted)]
    assert cards[0] == cards[1]
    assert made == wanted


def test_private_things_are_in_no_file(recorded, tmp_path):
    files = share(
        recorded, tmp_path / "site", "--redact", "codename", "--redact", "*secret_plan", "--redact", "internal/*"
    )
    whole = "\n".join(text for name, text in files.items() if not name.startswith("static/"))
    assert {what: value for what, value in HIDDEN.items() if value in whole} == {}
    assert "internal/" not in whole
    settings = answers(tmp_path / "site", "run")[""]["config"]
    assert settings["codename"] == settings["optim"]["warmup_secret_plan"] == settings["api_key"] == "***"
    assert settings["model"] == "…/qwen"
    assert settings["data"] == {"train": "…/easy.parquet", "more": ["…/hard.parquet"]}
    assert settings["learning_rate"] == 1e-5
    assert "/usr/bin/env" in whole, "a model's own words stay"
    assert "It is Paris." in whole
    assert "by *** in Oslo" in whole
    assert "KL is high on ***" in whole


def test_texts_can_be_left_out(recorded, tmp_path):
    files = share(recorded, tmp_path / "site", "--no-texts", "--redact", "internal/*")
    whole = "\n".join(text for name, text in files.items() if not name.startswith("static/"))
    private = ["Paris", "Capital", "whereabouts", "notes.txt", "Oslo", "from project", "internal/"]
    assert [words for words in private if words in whole] == []
    groups = [answer for key, answer in answers(tmp_path / "site", "rollouts").items() if "group=" in key]
    assert groups[0]["groups"][0]["rollouts"][0]["turns"][0]["text"] == "(left out)"
    assert groups[0]["groups"][0]["rollouts"][3]["reward"] == 3.0


def test_as_many_rollouts_as_were_asked_for_go_along(recorded, tmp_path):
    for wanted in (0, 1, 10, 50, 10_000):
        groups = list(chosen_groups(open_run(recorded).rollout_log, wanted))
        assert sum(len(group.rollouts) for group in groups) == min(wanted, 240)
        if wanted >= 10:
            assert {1, 30} <= {group.step for group in groups}
    share(recorded, tmp_path / "site", "--rollouts", "0")
    assert answers(tmp_path / "site", "rollouts")[""]["status"] == 404


def test_every_address_has_its_line():
    assert ANSWERS.keys() <= SHARED.keys()


def test_answers_are_the_servers_own(recorded, tmp_path):
    share(recorded, tmp_path / "site")
    index = json.loads((tmp_path / "site" / "site.json").read_text())
    lists = [json.loads(gzip.decompress((tmp_path / "site" / name).read_bytes())) for name in index["lists"]]
    line = answers(tmp_path / "site", "series")["name=loss\nx=step"]["lines"][0]
    at, number = line["y"]["="]
    assert lists[at][number] == [float(f"{1 / step:.5g}") for step in range(1, 31)]
    assert line["low"] == line["high"] == line["y"], "one list for three"
    listed = answers(tmp_path / "site", "runs", "")[""]
    assert (listed["folder"], listed["runs"][0]["last_step"]) == ("shared runs", 30)


def test_a_question_has_one_key_whatever_its_order():
    one = key_of(SHARED["compare"], [("run", "a"), ("run", "b")])
    assert one == "run=b"
    assert (
        key_of(SHARED["overlay"], [("points", "9"), ("x", "step"), ("run", "a"), ("run", "b"), ("name", "loss")])
        == "name=loss\nx=step"
    )


def test_a_second_share_updates_the_site_and_keeps_what_is_not_its_own(recorded, tmp_path):
    site = tmp_path / "site"
    share(recorded, site)
    (site / ".git").mkdir()
    (site / ".git" / "config").write_text("kept")
    before = set((site / "data").iterdir())
    share(recorded, site, "--rollouts", "0")
    index = json.loads((site / "site.json").read_text())
    named = {name for facts in index["addresses"].values() for name in facts["files"].values()} | set(index["lists"])
    assert {f"data/{path.name}" for path in (site / "data").iterdir()} == named
    assert before & set((site / "data").iterdir()), "what has not changed is not written again"
    assert (site / ".git" / "config").read_text() == "kept"


def test_a_foreign_folder_is_left_alone(recorded, tmp_path, capsys):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "thesis.txt").write_text("mine")
    assert main(["share", str(recorded), "--to", str(tmp_path / "site")]) == 64
    assert "holds other files" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["thesis.txt"]
    share(recorded, tmp_path / "site", "--overwrite")
    assert (tmp_path / "site" / "thesis.txt").read_text() == "mine"


def test_a_share_that_is_cut_short_leaves_nothing(recorded, tmp_path, monkeypatch):
    def full(*words, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlvitals.store.publishing.replace_folder", full)
    assert main(["share", str(recorded), "--to", str(tmp_path / "site")]) == 64
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_holds_the_same_files(recorded, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    files = share(recorded, tmp_path / "site")
    assert main(["share", str(recorded), "--to", "memory://bucket/site"]) == 0
    there = fsspec.filesystem("memory").find("/bucket/site")
    assert {path.removeprefix("/bucket/site/") for path in there} == set(files)
    fsspec.filesystem("memory").pipe_file("/other/x", b"foreign")
    assert main(["share", str(recorded), "--to", "memory://other"]) == 64


def test_a_space_finds_its_card_and_the_title_is_quoted(recorded, tmp_path):
    yaml = pytest.importorskip("yaml")
    title = 'A "title": <b>\nsdk: docker'
    files = share(recorded, tmp_path / "site", "--title", title)
    card = yaml.safe_load(files["README.md"].split("---\n")[1])
    assert (card["title"], card["sdk"], card["app_file"]) == (title, "static", "index.html")
    assert "<b>" not in files["index.html"]
    assert "Content-Security-Policy" in files["index.html"]
    assert "unsafe" not in files["index.html"]


def test_what_is_no_run_is_reported(tmp_path, capsys):
    assert main(["share", str(tmp_path), "--to", str(tmp_path / "site")]) == 64
    assert "there is no run" in capsys.readouterr().err
    assert not (tmp_path / "site").exists()
    assert issubclass(RlvitalsError, Exception)


def test_the_commands_of_the_page_are_commands(recorded, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "sharing.md").read_text()
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", page, re.DOTALL))
    commands = [shlex.split(line, comments=True)[1:] for line in blocks.splitlines() if line.startswith("rlvitals ")]
    assert {words[0] for words in commands} == {"share", "serve", "push"}
    for verb, *words in commands:
        parser = Parser(exit_on_error=False)
        import_module(f"rlvitals.cli.{verb}").add_arguments(parser)
        parser.parse_args(words)
    monkeypatch.chdir(tmp_path)
    for name in ("grpo-1", "grpo-2"):
        shutil.copytree(recorded, tmp_path / "out" / name)
    first = commands[0]
    assert first[0] == "share"
    assert main(first) == 0
    assert (tmp_path / "site" / "index.html").exists()


def test_more_runs_than_a_page_takes_are_refused(recorded, tmp_path, capsys):
    assert main(["share", *[str(recorded)] * 33, "--to", str(tmp_path / "site")]) == 64
    assert "at most 32 runs" in capsys.readouterr().err
