"""The table of rollouts: it is correct after any change of the files, and may be deleted."""

from __future__ import annotations

import json
import shutil
import sqlite3

import pytest

import rlvitals
from rlvitals.store.layout import RunDir
from rlvitals.store.rollout_forms import group_of
from rlvitals.store.rollout_index import RolloutIndex, RunFiles
from rlvitals.store.rollouts import group_line, read_groups, rollout_files


@pytest.fixture
def run_dir(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:
        for step in (1, 2):
            run.log({"loss": 1.0}, step=step)
            run.log_groups(groups(step), step=step)
    return RunDir(tmp_path / "run")


def groups(step):
    return [
        {
            "prompt": f"Question {name}",
            "id": name,
            "max_turns": 2,
            "kept": name == "a",
            "rollouts": [
                {"completion": f"{name} says Zebra at step {step}", "reward": step + number, "outcome": "correct"}
                for number in (0, 1)
            ],
        }
        for name in ("a", "b")
    ]


def found(run_dir, **asked):
    with RolloutIndex(RunFiles(run_dir)) as index:
        return [(item.step, item.number, item.reward) for item in index.find(**asked)]


def append(run_dir, step, **group):
    line = group_line(group_of(group, pytest.fail), step, 1, 0.0)
    with run_dir.rollout_file(step).open("ab") as file:
        file.write(line)


def test_steps_are_counted(run_dir):
    with RolloutIndex(RunFiles(run_dir)) as index:
        assert index.steps()[1] == {
            "step": 2, "attempt": 1, "groups": 2, "kept": 1, "filtered": 1, "rollouts": 4, "mean": 2.5, "early": 4,
        }  # fmt: skip


def test_the_worst_come_first_and_those_without_a_reward_not_at_all(run_dir):
    append(run_dir, 2, prompt="c", rollouts=[{"completion": "x"}, {"completion": "y", "reward": float("nan")}])
    append(run_dir, 2, prompt="d", rollouts=[{"completion": "x", "reward": -7.0}])
    assert found(run_dir, worst=True)[:3] == [(2, 1, -7.0), (1, 1, 1.0), (1, 1, 1.0)]
    assert len(found(run_dir, worst=True)) == 9
    assert len(found(run_dir)) == 11


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("zebra", 8),  # letter case does not matter
        ("EBR", 8),  # parts of words are found
        ("says zebra at", 8),
        ("zebra says", 0),
        ("a says", 4),
        ("question", 4),  # a prompt counts for the first rollout of its group
        ("step 2", 4),
        ("rollouts", 0),  # keys of the files are not searched
        ("reward", 0),
        ('"; DROP TABLE', 0),
        ("", 0),
        ("correct", 8),
    ],
)
def test_words_are_found(run_dir, text, hits):
    assert len(found(run_dir, text=text)) == hits


def test_scripts_without_spaces_are_found_in_the_middle(run_dir):
    append(run_dir, 2, prompt="预算是多少", rollouts=[{"completion": "预算是四万元。"}])
    assert len(found(run_dir, text="四万")) == 1
    assert len(found(run_dir, text="万四")) == 0
    append(run_dir, 2, prompt="c", rollouts=[{"completion": "ŻYRAFA"}])
    assert len(found(run_dir, text="żyrafa")) == 1


def test_quotes_and_line_ends_are_found_as_they_were_written(run_dir):
    append(run_dir, 2, prompt="c", rollouts=["plain", 'he said "so\nbe it" \\o/'])
    for text in ('said "so', "so\nbe", '" \\O/'):
        assert found(run_dir, text=text) == [(2, 2, None)]


def test_the_worst_with_a_text_come_first(run_dir):
    assert [reward for _, _, reward in found(run_dir, text="zebra", worst=True)] == [1, 1, 2, 2, 2, 2, 3, 3]
    assert found(run_dir, text="zebra", outcome="wrong") == []
    assert len(found(run_dir, text="zebra", step=2)) == 4


def test_arguments_and_results_of_tools_are_found(run_dir):
    call = {"name": "search", "arguments": {"keywords": ["giraffe"]}, "result": "an okapi"}
    append(run_dir, 2, prompt="c", rollouts=[{"turns": [{"text": "", "calls": [call]}]}])
    assert len(found(run_dir, text="giraffe")) == len(found(run_dir, text="okapi")) == 1


def test_a_file_that_grew_is_read_on(run_dir):
    assert len(found(run_dir, text="zebra")) == 8
    append(run_dir, 2, prompt="c", rollouts=[{"completion": "another zebra", "reward": 0.0}])
    assert len(found(run_dir, text="zebra")) == 9
    assert found(run_dir, worst=True)[0] == (2, 1, 0.0)


def test_a_line_that_is_being_written_waits_for_its_end(run_dir):
    line = group_line(group_of({"prompt": "c", "rollouts": ["zebra"]}, pytest.fail), 2, 1, 0.0)
    with run_dir.rollout_file(2).open("ab", buffering=0) as file:
        file.write(line[:20])
        assert len(found(run_dir, text="zebra")) == len(found(run_dir)) == 8
        file.write(line[20:])
        assert len(found(run_dir, text="zebra")) == len(found(run_dir)) == 9


def test_a_file_that_was_replaced_is_read_again(run_dir):
    assert len(found(run_dir, text="zebra")) == 8
    run_dir.rollout_file(2).write_bytes(
        group_line(group_of({"prompt": "c", "rollouts": ["a zebra"]}, pytest.fail), 2, 1, 0.0)
    )
    assert len(found(run_dir, text="zebra")) == 5
    assert len(found(run_dir)) == 5


def test_a_file_that_is_gone_is_forgotten(run_dir):
    assert len(found(run_dir, text="zebra")) == 8
    run_dir.rollout_file(1).unlink()
    assert {step for step, _, _ in found(run_dir, text="zebra")} == {2}
    with RolloutIndex(RunFiles(run_dir)) as index:
        assert index.attempts == [(2, 1)]


@pytest.mark.parametrize("damage", [b"", b"garbage" * 100, None])
def test_a_lost_or_damaged_table_is_made_again(run_dir, damage):
    assert len(found(run_dir)) == 8
    table = run_dir.index / "rollouts.sqlite"
    table.unlink() if damage is None else table.write_bytes(damage)
    assert len(found(run_dir, text="zebra")) == 8


def test_a_table_of_another_format_is_made_again(run_dir):
    assert len(found(run_dir)) == 8
    base = sqlite3.connect(run_dir.index / "rollouts.sqlite")
    base.execute("PRAGMA user_version = 99")
    base.commit()
    base.close()
    assert len(found(run_dir)) == 8


def test_a_table_that_another_process_writes_does_not_stop_a_reader(run_dir, monkeypatch):
    assert len(found(run_dir)) == 8
    append(run_dir, 2, prompt="c", rollouts=["zebra"])
    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, timeout=0.1: real(path, timeout=0.1))
    other = real(run_dir.index / "rollouts.sqlite")
    other.execute("BEGIN EXCLUSIVE")
    assert len(found(run_dir, text="zebra")) == 9
    other.close()


def test_where_no_index_can_be_written_it_is_made_in_memory(run_dir):
    shutil.rmtree(run_dir.index, ignore_errors=True)
    run_dir.index.write_text("a file in its place")
    assert len(found(run_dir, text="zebra")) == 8
    assert run_dir.index.is_file()


def test_torn_and_foreign_lines_are_skipped_and_counted(run_dir):
    from rlvitals.store.reader import Problems

    with run_dir.rollout_file(2).open("ab") as file:
        file.write(b'garbage\n{"step":2}\n{"no":1}\n{"step":2,"rollouts":[{"rew')
    problems = Problems()
    kept = list(read_groups(run_dir.rollout_file(2), problems))
    assert len(kept) == 3  # one of them is an empty group
    assert problems.bad_lines == 2
    assert problems.torn_bytes > 0
    assert len(found(run_dir, step=2)) == 4


def test_files_are_known_by_step_and_rank(run_dir):
    (run_dir.rollouts / "step-000002-rank-11.jsonl").touch()
    (run_dir.rollouts / "notes.txt").touch()
    (run_dir.rollouts / "step-000003.jsonl.archive").touch()
    assert [(file.step, file.rank) for file in rollout_files(run_dir)] == [(1, 0), (2, 0), (2, 11), (3, 0)]


def test_compacted_rollouts_read_as_before_and_come_back_byte_by_byte(run_dir):
    from rlvitals.store.archive import compact_logs, expand_logs

    before = {file.path.name: file.path.read_bytes() for file in rollout_files(run_dir)}
    texts, all_of_them = found(run_dir, text="zebra"), found(run_dir)
    compact_logs(run_dir)
    assert not any(file.path.exists() for file in rollout_files(run_dir))
    assert found(run_dir, text="zebra") == texts
    assert found(run_dir) == all_of_them
    expand_logs(run_dir)
    assert {file.path.name: file.path.read_bytes() for file in rollout_files(run_dir)} == before


def test_a_resume_goes_on_with_compacted_rollouts(run_dir):
    from rlvitals.store.archive import compact_logs

    compact_logs(run_dir)
    with rlvitals.start(run_dir.root, monitor=False, display="none", resume=1) as run:
        run.log_groups([{"prompt": "again", "rollouts": ["x"]}], step=2)
    view = rlvitals.open_run(run_dir.root)
    assert [group.prompt for group in view.rollouts(2)] == ["again"]
    assert len(view.rollouts(1)) == 2


def test_the_table_numbers_groups_and_rollouts_as_their_file_is_read(tmp_path):
    with rlvitals.start(tmp_path, monitor=False, hardware=False, display="none") as run:
        run.log_groups([{"prompt": "p", "rollouts": [{"completion": "a", "reward": 1.0}]}], step=5)
    file = RunDir(tmp_path).rollout_file(5)
    line = json.loads(file.read_text())
    odd = [7, None, *line["rollouts"], []]
    file.write_text("".join(json.dumps(each) + "\n" for each in [{**line, "step": 6}, {**line, "rollouts": odd}]))
    log = rlvitals.open_run(tmp_path).rollout_log
    (hit,) = log.find(worst=True)
    assert log.at(hit.step)[hit.group - 1].rollouts[hit.rollout - 1].reward == 1.0
    assert (log.steps, log.at(6)) == ([5], [])
