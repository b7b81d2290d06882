"""The hardware sampler: its numbers compared with psutil's and the driver's, its own axis, its cost, its absence."""

from __future__ import annotations

import json
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

import rlvitals
from rlvitals.capture.hardware import (
    AmdGpus,
    Cpu,
    GpuSample,
    Machine,
    NvidiaGpus,
    ProcHost,
    PsutilHost,
    combined,
    find_gpus,
    find_host,
)
from rlvitals.capture.measurements import Sampler, is_sampled_here
from rlvitals.cli.main import main
from rlvitals.config import HARDWARE_SECONDS
from rlvitals.errors import ConfigError

GIB = 2**30
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")


@on_linux
def test_proc_and_psutil_report_the_same():
    (whole, available), memory = ProcHost().memory(), psutil.virtual_memory()
    assert whole == memory.total
    assert available == pytest.approx(memory.available, rel=0.05)
    own, theirs = ProcHost().cpu(), PsutilHost().cpu()  # in ticks and in seconds
    assert own.busy / own.whole == pytest.approx(theirs.busy / theirs.whole, rel=1e-3)


class Busy:
    """A machine of 16 GiB whose processors work a quarter of the time."""

    def __init__(self):
        self.whole = 0.0

    def cpu(self):
        self.whole += 100.0
        return Cpu(busy=self.whole / 4, whole=self.whole)

    def memory(self):
        return 16 * GIB, 4 * GIB


def test_the_documents_host_tags_have_exact_values():
    machine = Machine(host=Busy, gpus=lambda: None)
    sample = machine.sample()
    assert sample.pop("System/Process_Memory_GB") == pytest.approx(psutil.Process().memory_info().rss / GIB, rel=0.05)
    assert sample == {
        "System/CPU_Percent": 25.0,
        "System/Memory_Percent": 75.0,
        "System/Memory_Used_GB": 12.0,
        "System/Memory_Available_GB": 4.0,
    }


def test_a_processor_at_work_shows():
    machine = Machine(gpus=lambda: None)
    until = time.perf_counter() + 0.5
    while time.perf_counter() < until:
        pass
    assert 100 / psutil.cpu_count() * 0.5 <= machine.sample()["System/CPU_Percent"] <= 100


def test_without_a_way_to_ask_there_is_no_value():
    assert Machine(host=lambda: None, gpus=lambda: None).sample().keys() <= {"System/Process_Memory_GB"}


def test_a_host_of_another_shape_is_put_aside_with_a_word(caplog):
    class Odd(Busy):
        def memory(self):
            raise KeyError("MemAvailable")

    machine = Machine(host=Odd, gpus=lambda: None)
    for _ in range(3):
        sample = machine.sample()
    assert "System/Memory_Percent" not in sample
    assert caplog.text.count("the machine is no longer sampled") == 1


def test_one_card_has_the_documents_tags_and_no_others_of_its_own():
    card = GpuSample(utilisation=37.0, memory_used=20.0, memory_total=80.0, power=310.5, temperature=61.0)
    assert combined([card]) == {
        "System/GPU_Utilization": 37.0,
        "System/GPU_Memory_Used_GB": 20.0,
        "System/GPU_Memory_Total_GB": 80.0,
        "System/GPU_Memory_Percent": 25.0,
        "System/GPU_Power_W": 310.5,
        "System/GPU_Temperature_C": 61.0,
    }


def test_values_that_a_card_does_not_report_are_absent():
    assert combined([GpuSample(utilisation=0.0)]) == {"System/GPU_Utilization": 0.0}
    assert combined([]) == {}


def test_an_empty_card_is_at_zero_percent():
    assert combined([GpuSample(memory_used=0.0, memory_total=80.0)])["System/GPU_Memory_Percent"] == 0.0


def test_a_card_that_falls_off_the_bus_is_reported_once(caplog):
    class Lost:
        def read(self):
            raise RuntimeError("GPU is lost")

        def close(self):
            raise AssertionError("it is not ours any more")

    machine = Machine(host=Busy, gpus=Lost)
    for _ in range(3):
        assert machine.sample()["System/Memory_Percent"] == 75.0
    machine.close()
    assert caplog.text.count("GPU is lost") == 1


def test_nvml_reports_the_same_through_us_as_directly():
    try:
        cards = NvidiaGpus()
    except Exception as reason:
        pytest.skip(f"needs an NVIDIA GPU and nvidia-ml-py: {reason}")
    import pynvml

    (ours, *_), handle = cards.read(), pynvml.nvmlDeviceGetHandleByIndex(0)
    assert ours.memory_total == pytest.approx(pynvml.nvmlDeviceGetMemoryInfo(handle).total / GIB)
    assert 0 <= ours.utilisation <= 100
    assert 0 < ours.power < 2000
    assert 0 < ours.temperature < 120
    cards.close()


class FakeTorch:
    """The documented interface of torch on a Mac."""

    def __init__(self, is_available=True):
        self.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: is_available))
        self.mps = SimpleNamespace(
            current_allocated_memory=lambda: 2 * GIB,
            driver_allocated_memory=lambda: 3 * GIB,
            recommended_max_memory=lambda: 12 * GIB,
        )


def without_drivers(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_apples_gpu_reports_its_memory_where_torch_is_in_use(monkeypatch):
    without_drivers(monkeypatch)
    monkeypatch.setitem(sys.modules, "torch", FakeTorch())
    sample = Machine(host=Busy).sample()
    assert {name: value for name, value in sample.items() if "GPU" in name} == {
        "System/GPU_Memory_Used_GB": 3.0, "System/GPU_Memory_Total_GB": 12.0, "System/GPU_Memory_Percent": 25.0,
    }  # fmt: skip


@pytest.mark.parametrize("torch", [None, FakeTorch(is_available=False), SimpleNamespace(backends=SimpleNamespace())])
def test_without_metal_there_is_no_apple_gpu_and_torch_is_not_imported(monkeypatch, torch):
    without_drivers(monkeypatch)
    if torch is None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "torch", torch)
    assert find_gpus() is None
    assert sys.modules.get("torch") is torch


@pytest.mark.parametrize(
    ("power", "watts"),
    [
        ({"current_socket_power": 512, "average_socket_power": "N/A"}, 512.0),
        ({"current_socket_power": "N/A", "average_socket_power": 298}, 298.0),
        ({"current_socket_power": "N/A", "average_socket_power": "N/A"}, None),
    ],
)
def test_amds_cards_are_read_as_their_library_documents_it(monkeypatch, power, watts):
    class AmdSmiException(Exception):
        pass

    def no_sensor(*_):
        raise AmdSmiException

    library = SimpleNamespace(
        AmdSmiException=AmdSmiException,
        AmdSmiMemoryType=SimpleNamespace(VRAM="vram"),
        AmdSmiTemperatureType=SimpleNamespace(HOTSPOT="hotspot"),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT="current"),
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: ["first", "second"],
        amdsmi_get_gpu_activity=lambda handle: {"gfx_activity": 73, "umc_activity": 5, "mm_activity": "N/A"},
        amdsmi_get_gpu_memory_usage=lambda handle, kind: 48 * GIB,
        amdsmi_get_gpu_memory_total=lambda handle, kind: 192 * GIB,
        amdsmi_get_power_info=lambda handle: power,
        amdsmi_get_temp_metric=no_sensor,
    )
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    cards = AmdGpus()
    assert cards.read() == [GpuSample(73.0, 48.0, 192.0, power=watts)]
    cards.close()


def test_a_machine_without_a_card_has_no_gpu_values():
    if find_gpus() is not None:
        pytest.skip("this machine has a GPU")
    assert not [name for name in Machine().sample() if "GPU" in name]


def samples_of(run):
    try:
        with open(f"{run.dir}/logs/system.jsonl") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


def wait_for_samples(run, count):
    deadline = time.monotonic() + 20
    while len(samples_of(run)) < count:
        assert time.monotonic() < deadline, "no sample came"
        time.sleep(0.02)


def test_samples_have_a_log_and_an_axis_of_their_own(tmp_path):
    with rlvitals.start(tmp_path / "run", hardware=0.1) as run:
        run.log({"loss": 0.5}, step=41)
        wait_for_samples(run, 3)
    view = rlvitals.open_run(run.dir)
    columns = view.system()
    assert set(columns["step"]) <= {-1, 41}
    assert columns["step"][-1] == 41
    assert (columns["timestamp"][1:] > columns["timestamp"][:-1]).all()
    assert columns["System/Memory_Percent"].min() > 0
    assert view.rows == 1
    assert view.metrics == ["loss"]


def test_show_prints_the_last_sample(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run", hardware=0.1) as run:
        run.log({"loss": 0.5}, step=1)
        wait_for_samples(run, 1)
    assert main(["show", run.dir]) == 0
    assert "Memory_Percent" in capsys.readouterr().out
    assert main(["show", run.dir, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["system"]["System/Memory_Percent"] > 0


def test_nothing_is_sampled_when_it_is_off(tmp_path):
    with rlvitals.start(tmp_path / "run", hardware=False):
        assert "rlvitals-hardware" not in {thread.name for thread in threading.enumerate()}
    with rlvitals.start(tmp_path / "other"):
        assert "rlvitals-hardware" in {thread.name for thread in threading.enumerate()}
    assert "rlvitals-hardware" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("wrong", ["often", -1, 0.01])
def test_a_period_that_is_none_is_refused(tmp_path, wrong):
    with pytest.raises(ConfigError, match="hardware must be a number of seconds"):
        rlvitals.start(tmp_path / "run", hardware=wrong)


def test_one_process_of_each_machine_samples(monkeypatch):
    assert is_sampled_here(0)
    assert not is_sampled_here(8)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert is_sampled_here(8)


def test_overwriting_a_run_removes_its_samples(tmp_path):
    with rlvitals.start(tmp_path / "run", hardware=0.1) as run:
        wait_for_samples(run, 1)
        with run.phase("generate"):
            pass
    with rlvitals.start(tmp_path / "run", overwrite=True) as run:
        run.log({"loss": 0.5})
    assert samples_of(run) == []
    assert rlvitals.open_run(run.dir).phases() == []


def test_a_sampler_whose_taker_fails_is_silent_after_a_word(caplog):
    calls = []

    def fail(sample):
        calls.append(sample)
        raise ValueError("no")

    sampler = Sampler(fail, 0.02)
    deadline = time.monotonic() + 20
    while not caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    sampler.stop()
    assert len(calls) == 1


def test_sampling_takes_less_than_half_a_percent_of_a_core():
    machine = Machine()
    machine.sample()
    began = time.thread_time()
    for _ in range(50):
        machine.sample()
    seconds = (time.thread_time() - began) / 50
    assert find_host() is not None
    assert seconds < 0.005 * HARDWARE_SECONDS
