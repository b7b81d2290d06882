"""Several ranks of one job, each a real process with a launcher's environment, writing one run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import rlvitals
from rlvitals.capture import start as start_module
from rlvitals.errors import RunError
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import RunLock

pytestmark = pytest.mark.slow

SAMPLES = {
    0: {0: [1.0, 2.0, 3.0], 1: [4.0], 2: [0.5, 0.25]},
    1: {0: [10.0], 1: [5.0, 6.0, 7.0, 8.0], 3: [9.0]},
}
"""rank -> step -> its rewards. The parts differ in size, so a mean of means would be wrong."""

RANK = """
    import json, os, sys
    import rlvitals
    from rlvitals import values
    samples = json.loads(sys.argv[2])[os.environ["RANK"]]
    with rlvitals.start(sys.argv[1], **json.loads(sys.argv[3])) as run:
        print(f"rank {run.rank} attempt {run.attempt}", flush=True)
        for step, rewards in samples.items():
            run.log(
                {
                    "reward": values.mean(rewards),
                    "reward/std": values.spread(rewards),
                    "reward/max": values.largest(rewards),
                    "tokens": values.total(len(rewards) for _ in rewards),
                    "loss": float(run.rank),
                },
                step=int(step),
            )
        sys.stdin.read()
"""


@pytest.fixture
def rank(child_environment):
    """Start one rank of a job; it runs until the test ends it."""
    children = []

    def begin(number, folder, samples=SAMPLES, script=RANK, launcher=("RANK", "WORLD_SIZE"), **settings):
        names = dict(zip(launcher, (str(number), "2"), strict=True))
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(folder), json.dumps(samples), json.dumps(settings)],
            env={**child_environment, "RANK": str(number), **names},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()


def end(*children):
    """Let ranks finish, rank 0 last, and check that they did."""
    for child in reversed(children):
        _, err = child.communicate("", timeout=60)
        assert child.returncode == 0, err


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def both(step):
    return SAMPLES[0].get(step, []) + SAMPLES[1].get(step, [])


def test_two_ranks_write_files_of_their_own_and_the_reader_merges_them_exactly(tmp_path, rank):
    zero, one = rank(0, tmp_path), rank(1, tmp_path)
    assert zero.stdout.readline() == "rank 0 attempt 1\n"
    assert one.stdout.readline() == "rank 1 attempt 1\n"
    end(zero, one)
    own = {
        0: lines_of(tmp_path / "logs/training_metrics.jsonl"),
        1: lines_of(tmp_path / "logs/ranks/rank-1.jsonl"),
    }
    for number, rows in own.items():
        assert {row["step"]: row["reward"] for row in rows} == {
            step: float(np.mean(seen)) for step, seen in SAMPLES[number].items()
        }
    view = rlvitals.open_run(tmp_path)
    assert view.ranks == [0, 1]
    assert view.problems == []
    for name, formula in {
        "reward": np.mean,
        "reward/std": np.std,
        "reward/max": np.max,
        "tokens": lambda seen: sum(len(part) ** 2 for part in seen),
    }.items():
        steps, numbers = view.series(name)
        assert steps.tolist() == [0, 1, 2, 3]
        expected = [
            formula(both(step)) if name != "tokens" else formula([SAMPLES[n].get(step, []) for n in (0, 1)])
            for step in range(4)
        ]
        assert numbers.tolist() == pytest.approx(expected, rel=1e-14)


def test_numbers_that_cannot_be_merged_are_rank_0_s_and_each_rank_can_be_read_alone(tmp_path, rank):
    zero, one = rank(0, tmp_path), rank(1, tmp_path)
    end(zero, one)
    view = rlvitals.open_run(tmp_path)
    assert view.series("loss").values.tolist() == [0.0, 0.0, 0.0]
    assert view.series("loss", rank=1).values.tolist() == [1.0, 1.0, 1.0]
    assert view.series("reward", rank=1).steps.tolist() == [0, 1, 3]
    assert view.series("reward", rank=1).values.tolist() == [10.0, 6.5, 9.0]
    assert view.rows == 3


def test_one_run_is_recorded_whatever_the_number_of_ranks(tmp_path, rank):
    zero, one = rank(0, tmp_path), rank(1, tmp_path)
    end(zero, one)
    card = json.loads((tmp_path / "run.json").read_text())
    assert (card["status"], card["pid"]) == ("finished", zero.pid)
    assert len(lines_of(tmp_path / "attempts.jsonl")) == 1
    assert not (tmp_path / "run.lock").exists()


def test_a_rank_that_is_killed_costs_only_what_it_had_not_logged(tmp_path, rank):
    zero, one = rank(0, tmp_path), rank(1, tmp_path)
    for child in (zero, one):
        child.stdout.readline()
    path = tmp_path / "logs/ranks/rank-1.jsonl"
    deadline = time.monotonic() + 30
    while (not path.exists() or path.read_bytes().count(b"\n") < 3) and time.monotonic() < deadline:
        time.sleep(0.01)
    one.kill()
    one.wait()
    with open(path, "a") as file:
        file.write('{"step":4,"timestamp":1.0,"atte')
    end(zero)
    view = rlvitals.open_run(tmp_path)
    assert view.status == "finished"
    assert view.series("reward").values.tolist() == pytest.approx([np.mean(both(step)) for step in range(4)])
    assert view.problems == [
        "rank-1.jsonl: the last line is torn (31 bytes of a row that was never acknowledged)",
    ]


@pytest.mark.parametrize(
    "launcher",
    [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")],
    ids=["torchrun", "slurm", "mpi"],
)
def test_ranks_are_known_from_their_launcher(tmp_path, rank, launcher):
    zero, one = rank(0, tmp_path, launcher=launcher), rank(1, tmp_path, launcher=launcher)
    assert one.stdout.readline() == "rank 1 attempt 1\n"
    end(zero, one)
    assert rlvitals.open_run(tmp_path).ranks == [0, 1]


def test_a_lone_process_is_rank_0_even_with_a_rank_in_its_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with rlvitals.start(tmp_path) as run:
        assert run.rank == 0
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with rlvitals.start(tmp_path, resume=True, rank=0) as run:  # the argument takes precedence over the environment
        assert run.rank == 0


# Order of starting


@pytest.mark.slow
def test_rank_1_waits_for_rank_0(tmp_path, rank):
    folder = tmp_path / "run"
    one = rank(1, folder)
    received = []
    listener = threading.Thread(target=lambda: received.append(one.stdout.readline()))
    listener.start()
    listener.join(timeout=1.0)
    assert not received
    assert not folder.exists()  # rank 1 has created nothing
    zero = rank(0, folder)
    listener.join(timeout=60)
    assert received == ["rank 1 attempt 1\n"]
    end(zero, one)
    assert rlvitals.open_run(folder).series("reward").values.tolist()[0] == np.mean(both(0))


def test_rank_1_gives_up_with_the_fix_when_rank_0_never_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(start_module, "RANK_WAIT_SECONDS", 0.2)
    with pytest.raises(RunError, match=r"rank 1 waited .* rank 0 has not started .*pass rank=0"):
        rlvitals.start(tmp_path / "run", rank=1)


def test_rank_1_does_not_join_a_run_that_is_over(tmp_path, monkeypatch):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0})
    monkeypatch.setattr(start_module, "RANK_WAIT_SECONDS", 0.2)
    with pytest.raises(RunError, match="rank 0 has not started"):
        rlvitals.start(tmp_path, rank=1)


@pytest.mark.slow
def test_on_a_resume_rank_1_waits_for_the_new_attempt_and_does_not_join_the_old_one(tmp_path, rank):
    """Rank 0 has the lock, but the new attempt is not recorded yet: a reader still finds the old one."""
    zero, one = rank(0, tmp_path), rank(1, tmp_path)
    end(zero, one)
    rank_0_is_starting = RunLock(RunDir(tmp_path))
    rank_0_is_starting.acquire()
    one = rank(1, tmp_path)
    received = []
    listener = threading.Thread(target=lambda: received.append(one.stdout.readline()))
    listener.start()
    listener.join(timeout=1.5)
    rank_0_is_starting.release()
    with rlvitals.start(tmp_path, resume=0) as run:
        listener.join(timeout=60)
        assert received == ["rank 1 attempt 2\n"]
        end(one)
        assert run.attempt == 2


@pytest.mark.slow
def test_a_resumed_job_merges_each_attempt_for_itself(tmp_path, rank):
    again = {0: {1: [100.0], 2: [200.0]}, 1: {1: [300.0, 400.0], 2: [500.0]}}
    zero, one = rank(0, tmp_path), rank(1, tmp_path)
    end(zero, one)
    zero = rank(0, tmp_path, again, resume=0)
    assert zero.stdout.readline() == "rank 0 attempt 2\n"
    one = rank(1, tmp_path, again)
    assert one.stdout.readline() == "rank 1 attempt 2\n"
    end(zero, one)
    view = rlvitals.open_run(tmp_path)
    steps, rewards = view.series("reward")
    assert steps.tolist() == [0, 1, 2]
    assert rewards.tolist() == pytest.approx([np.mean(both(0)), 800 / 3, 350.0])
    ghosts = view.series("reward", ghosts=True)
    assert ghosts.steps.tolist() == [1, 2, 3]
    assert ghosts.values.tolist() == pytest.approx([np.mean(both(step)) for step in (1, 2, 3)])


# What may differ between ranks


def test_a_nan_on_one_rank_is_a_nan_of_the_whole(tmp_path, rank):
    broken = {0: {0: [1.0], 1: [2.0]}, 1: {0: [math.nan], 1: [4.0]}}
    script = RANK.replace("values.largest(rewards)", "0.0")
    zero, one = rank(0, tmp_path, broken, script), rank(1, tmp_path, broken, script)
    end(zero, one)
    steps, rewards = rlvitals.open_run(tmp_path).series("reward")
    assert steps.tolist() == [0, 1]
    assert math.isnan(rewards[0])
    assert rewards[1] == 3.0


def test_evaluations_of_other_ranks_are_rows_beside_rank_0_s_and_one_file(tmp_path, rank):
    script = """
        import json, os, sys
        import rlvitals
        from rlvitals import values
        with rlvitals.start(sys.argv[1]) as run:
            rewards = [1.0] if run.rank == 0 else [2.0, 3.0, 4.0]
            run.log_eval({"score": values.mean(rewards), "who": run.rank}, step=5)
            print("done", flush=True)
            sys.stdin.read()
    """
    zero, one = rank(0, tmp_path, script=script), rank(1, tmp_path, script=script)
    end(zero, one)
    assert rlvitals.open_run(tmp_path).series("score").values.tolist() == [2.5]
    assert (tmp_path / "logs/ranks/rank-1-eval.jsonl").exists()
    (path,) = Path(tmp_path / "eval_logs").iterdir()
    assert json.loads(path.read_text()) == {"step": 5, "score": 1.0, "who": 0}
