"""A real Ray cluster of one node: workers in separate processes, killed workers and restarted drivers."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from test_openrlhf import PublishedLogger

import rlvitals

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),  # one cluster for all tests
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the package ray"),
]

SETTINGS = {
    "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "PYTHONWARNINGS": "ignore"
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    """A cluster that outlives every driver. Its folder has a short name because socket paths have a length limit."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=3", "--port=0",
        "--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats",
        f"--temp-dir={folder}", "--object-store-memory=80000000",
    ]  # fmt: skip
    with open(folder / "head.log", "wb") as log:
        head = subprocess.Popen(command, env={**os.environ, **SETTINGS}, stdout=log, stderr=log)
    try:
        address = folder / "ray_current_cluster"
        deadline = time.monotonic() + 90
        while not address.exists() or not address.read_text():
            assert head.poll() is None, (folder / "head.log").read_text()
            assert time.monotonic() < deadline, "the cluster did not start"
            time.sleep(0.2)
        yield address.read_text()
    finally:
        head.terminate()
        try:
            head.wait(30)
        finally:
            head.kill()
            shutil.rmtree(folder, ignore_errors=True)


PRELUDE = """
    import os, signal, sys, time
    import ray
    import rlvitals
    from rlvitals import values
    from rlvitals.adapters import ray as vitals
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
    folder = sys.argv[2]
    def tell(*facts):
        print(">", *facts, flush=True)  # Ray itself has things to say on stdout
"""


@pytest.fixture
def driver(cluster, tmp_path, child_environment):
    """Start a separate driver, which may wait or be killed."""
    children = []

    def begin(script, prelude=PRELUDE, **environment):
        source = textwrap.dedent(prelude) + textwrap.dedent(script)
        child = subprocess.Popen(
            [sys.executable, "-c", source, cluster, str(tmp_path / "run")],
            env={**child_environment, **SETTINGS, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        children.append(child)
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()


def ended(child):
    out, err = child.communicate(timeout=150)
    assert child.returncode == 0, err
    return [line.removeprefix("> ") for line in out.splitlines() if line.startswith("> ")], err


SCRIPTS = """
    import json, traceback
    given = dict(globals())
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            exec(asked["script"], {**given, "folder": asked["folder"]})
        except BaseException:
            traceback.print_exc()
            tell("failed")
        tell("end")
"""


@pytest.fixture(scope="module")
def lasting(cluster, tmp_path_factory):
    """A driver that runs one script after the other: starting a driver and its workers takes seconds of CPU time."""
    errors = tmp_path_factory.mktemp("driver") / "stderr"
    with errors.open("w") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(SCRIPTS), cluster, ""],
            env={**os.environ, **SETTINGS, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    child.errors = errors
    yield child
    child.kill()
    child.communicate()


@pytest.fixture
def outcome_of(lasting, tmp_path):
    """Run a script to its end and return the lines it reported and its standard error."""

    def run(script):
        before = lasting.errors.stat().st_size
        lasting.stdin.write(json.dumps({"script": textwrap.dedent(script), "folder": str(tmp_path / "run")}) + "\n")
        lasting.stdin.flush()
        lines = []
        while (line := lasting.stdout.readline()) != "> end\n":
            assert line, f"the driver has ended: {lasting.errors.read_text()}"
            lines += [line[2:-1]] if line.startswith("> ") else []
        err = lasting.errors.read_bytes()[before:].decode()
        assert "failed" not in lines, err
        return lines, err

    return run


WORKERS = """
    run = vitals.serve(folder, algorithm="grpo", monitor=False)

    @ray.remote(num_cpus=1)
    class Worker:
        def __init__(self, rank):
            self.run = vitals.connect(rank=rank)
        def work(self, steps):
            for step in steps:
                rewards = [float(step + self.run.rank)] * self.run.rank
                self.run.log({"reward": values.mean(rewards)}, step=step)
            return self.run.flush(30)
        def pid(self):
            return os.getpid()

    first, second = Worker.remote(1), Worker.remote(2)
    assert all(ray.get([first.work.remote(range(5)), second.work.remote(range(5))]))
    os.kill(ray.get(first.pid.remote()), signal.SIGKILL)
    assert ray.get(second.work.remote(range(5, 10)))
    for step in range(10):
        run.log({"loss": 1.0 / (step + 1), "reward": values.mean([])}, step=step)

    @ray.remote(num_cpus=0)
    def evaluate(run):
        run.log_eval({"accuracy": 0.75, "answers": ["a", "b"]}, step=9)

    ray.get(evaluate.remote(run))
    tell(run.flush(30), run.dropped, len({os.getpid(), run.facts["pid"], ray.get(second.pid.remote())}))
    run.finish()
"""


def test_workers_of_several_processes_log_to_one_run_and_a_killed_one_takes_nothing_with_it(outcome_of, tmp_path):
    out, _ = outcome_of(WORKERS)
    assert out == ["True 0 3"]
    view = rlvitals.open_run(tmp_path / "run")
    assert view.status == "finished"
    assert view.ranks == [0, 1, 2]
    assert view.series("loss").values.tolist() == [1.0 / (step + 1) for step in range(10)]
    assert view.series("reward", rank=1).steps.tolist() == [0, 1, 2, 3, 4]
    steps, rewards = view.series("reward")
    whole = [np.mean([step + 1] + [step + 2] * 2) if step < 5 else step + 2 for step in range(10)]
    assert steps.tolist() == list(range(10))
    assert rewards == pytest.approx(whole)
    assert view.series("accuracy").values.tolist() == [0.75]


FIRST_DRIVER = """
    run = vitals.serve(folder, recorder="again", config={"lr": 1.0}, monitor=False)
    for step in range(5):
        run.log({"loss": float(step)}, step=step)
    tell(run.flush(30))
    time.sleep(600)
"""

SECOND_DRIVER = """
    try:
        vitals.serve(folder, recorder="again")
    except rlvitals.errors.RunLocked as error:
        tell("locked:", "resume=True" in str(error))
    before = vitals.connect("again").facts
    run = vitals.serve(folder, recorder="again", resume=3, monitor=False)
    after = run.facts
    tell(before["attempt"], after["attempt"], before["pid"] == after["pid"], before["id"] == after["id"])
    for step in range(4, 7):
        run.log({"loss": 10.0 + step}, step=step)
    run.finish()
    try:
        vitals.connect("again")
    except rlvitals.errors.RunNotFound as error:
        tell("gone:", "serve()" in str(error))
"""


def test_a_killed_driver_comes_again_and_goes_on_from_its_checkpoint(driver, tmp_path):
    first = driver(FIRST_DRIVER)
    assert first.stdout.readline() == "> True\n", first.communicate()[1]
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    out, _ = ended(driver(SECOND_DRIVER))
    assert out == ["locked: True", "1 2 True True", "gone: True"]
    view = rlvitals.open_run(tmp_path / "run")
    assert view.status == "finished"
    assert view.series("loss").values.tolist() == [0.0, 1.0, 2.0, 3.0, 14.0, 15.0, 16.0]
    assert view.series("loss", ghosts=True).values.tolist() == [4.0]


RECORDER_FAULTS = """
    run = vitals.serve(folder, recorder="faults", monitor=False)
    limit, vitals.MAX_WAITING = vitals.MAX_WAITING, 50
    for step in range(20):
        run.log({"loss": float(step)}, step=step)
    assert run.flush(30)
    os.kill(run.facts["pid"], signal.SIGKILL)
    for step in range(20, 40):
        run.log({"loss": float(step)}, step=step)
    assert run.flush(60)
    tell(run.facts["attempt"], run.dropped)
    os.kill(run.facts["pid"], signal.SIGSTOP)
    began = time.monotonic()
    for step in range(40, 140):
        run.log({"loss": float(step)}, step=step)
    tell(run.dropped, run.flush(0.1), time.monotonic() - began < 10)
    os.kill(recorder, signal.SIGCONT)
    tell(run.flush(60))
    run.log({"loss": 140.0, "handle": open(os.devnull)}, step=140)
    run.finish()
    run.log({"loss": 141.0}, step=141)
    run.flush(10)
    tell(run.dropped)
    vitals.MAX_WAITING = limit
""".replace(
    'os.kill(run.facts["pid"], signal.SIGSTOP)', 'recorder = run.facts["pid"]; os.kill(recorder, signal.SIGSTOP)'
)


def test_a_killed_recorder_is_started_again_and_one_that_hangs_holds_nobody_up(outcome_of, tmp_path):
    out, err = outcome_of(RECORDER_FAULTS)
    assert out == ["2 0", "50 False True", "True", "51"]
    assert "the recorder is 50 rows behind" in err
    view = rlvitals.open_run(tmp_path / "run")
    assert view.series("loss").steps.tolist() == [*range(90), 140]


ASKED = """
    with vitals.serve(folder, recorder="asked", algorithm="grpo", actions="act") as run:
        assert run.request() is None
        for step in range(1, 20):
            run.log({"grad_norm": 0.0, "loss": 1.0}, step=step)
        request = run.request()
        tell(request.action, [finding.kind for finding in run.findings])
        request.declined("it is a test")
"""


def test_a_request_of_the_doctor_reaches_the_driver_and_its_answer_the_record(outcome_of, tmp_path):
    out, _ = outcome_of(ASKED)
    assert out == ["stop ['dead_gradient']"]
    assert '"it is a test"' in (tmp_path / "run/logs/findings.jsonl").read_text()
    assert rlvitals.open_run(tmp_path / "run").status == "finished"


SHARED_STORAGE = """
    @ray.remote(num_cpus=1)
    def work(rank):
        with rlvitals.start(folder, rank=rank) as run:
            run.log({"reward": values.mean([float(rank)] * rank)}, step=0)

    with rlvitals.start(folder, monitor=False) as run:
        run.log({"loss": 1.0, "reward": values.mean([])}, step=0)
        ray.get([work.remote(1), work.remote(2)])
"""


def test_workers_write_files_of_their_own_where_storage_is_shared(outcome_of, tmp_path):
    outcome_of(SHARED_STORAGE)
    view = rlvitals.open_run(tmp_path / "run")
    assert view.ranks == [0, 1, 2]
    assert view.series("reward").values.tolist() == pytest.approx([5 / 3])


JOINED = """
    @ray.remote(num_cpus=0)
    def worker(number):
        run = vitals.join(folder, monitor=False)
        run.log({f"part_{number}": 1.0}, step=1)
        run.log_groups([{"prompt": "1 + 1?", "rollouts": [{"completion": str(number), "reward": 0.5}]}], step=1)
        return run.flush(60)

    assert all(ray.get([worker.remote(number) for number in range(2)]))
    vitals.join(folder).finish()
"""


def test_whoever_comes_first_starts_the_run_that_others_join_and_rollouts_arrive(outcome_of, tmp_path):
    outcome_of(JOINED)
    run = rlvitals.open_run(tmp_path / "run")
    assert run.status == "finished"
    assert [len(run.series(f"part_{number}")[0]) for number in range(2)] == [1, 1]
    assert sorted(group.rollouts[0].turns[0].text for group in run.rollouts(1)) == ["0", "1"]


BROKEN_START = """
    rlvitals.start(folder, monitor=False).finish()
    for wrong in ({}, {"resume": True, "totel_steps": 5}):
        try:
            vitals.serve(folder, recorder="broken", **wrong)
        except rlvitals.errors.RlvitalsError as error:
            tell(type(error).__name__)
    vitals.serve(folder, recorder="broken", resume=True).finish()
"""


def test_what_is_wrong_at_the_start_raises_in_the_driver_and_leaves_no_recorder(outcome_of):
    out, _ = outcome_of(BROKEN_START)
    assert out == ["RunExists", "ConfigError"]


OPENRLHF = """
    import sys
    import ray
    ray.init(address=sys.argv[1], log_to_driver=False, runtime_env={"env_vars": {"NCCL_DEBUG": "WARN"}})
"""

TRAINER = """
    @ray.remote
    class PPOTrainer:
        def fit(self):
            from openrlhf.utils.logging_utils import TensorboardLogger
            logger = TensorboardLogger(None)
            for step in (1, 2, 3):
                logger.log_train(step, {"reward": step / 10})
            logger.close()

    ray.get(PPOTrainer.remote().fit.remote())
"""


def test_openrlhfs_trainer_is_reached_by_rays_set_up_hook(driver, tmp_path):
    package = tmp_path / "package" / "openrlhf"
    (package / "utils").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "utils" / "__init__.py").touch()
    published = inspect.getsource(PublishedLogger)
    (package / "utils" / "logging_utils.py").write_text(
        f"{published}\n\nclass WandbLogger(PublishedLogger): pass\n\n\nclass TensorboardLogger(PublishedLogger): pass\n"
    )
    job = {  # the runtime environment that `ray job submit` sets
        "worker_process_setup_hook": "rlvitals.adapters.openrlhf.install",
        "env_vars": {
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "package"), *sys.path]),
            "RLVITALS_OUTPUT_DIR": str(tmp_path / "run"),
        },
    }
    ended(driver(TRAINER, OPENRLHF, RAY_JOB_CONFIG_JSON_ENV_VAR=json.dumps({"runtime_env": job})))
    assert rlvitals.open_run(tmp_path / "run").series("train/reward").values.tolist() == [0.1, 0.2, 0.3]
