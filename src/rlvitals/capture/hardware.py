"""Samples the machine: processors, memory, accelerators.

CPU and memory come from /proc on Linux and from psutil on other systems, if it is installed. Accelerators are read
through their drivers: NVIDIA's through NVML, AMD's through amdsmi, Apple's through torch. Values that a machine does
not report are missing. The metric names come from the RLAIF document. They end in GB, but sizes are in GiB.

A driver counts all processes; on Apple only this process is counted. Utilisation is the share of time in which a kernel
ran, not a share of memory.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from rlvitals.capture.memory import GIB, cuda_devices, process_memory
from rlvitals.guard import guarded, value_or, words_of
from rlvitals.terminal import logger


class Cpu(NamedTuple):
    """Time of all cores together since the machine started, in units that depend on the host."""

    busy: float
    whole: float


class Host(Protocol):
    """The machine's processors and main memory."""

    def cpu(self) -> Cpu: ...

    def memory(self) -> tuple[int, int]:
        """Total and available bytes."""


class ProcHost:
    """`Host` that reads /proc."""

    def cpu(self) -> Cpu:
        with open("/proc/stat", "rb") as file:
            # user nice system idle iowait irq softirq steal; user already includes the time of guests.
            times = [float(word) for word in file.readline().split()[1:9]]
        idle = times[3] + times[4]
        return Cpu(sum(times) - idle, sum(times))

    def memory(self) -> tuple[int, int]:
        found: dict[bytes, int] = {}
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                name, _, rest = line.partition(b":")
                if name in (b"MemTotal", b"MemAvailable"):
                    found[name] = int(rest.split()[0]) * 1024
                    if len(found) == 2:
                        break
        return found[b"MemTotal"], found[b"MemAvailable"]


class PsutilHost:
    """`Host` that uses psutil. Raises ImportError if it is not installed."""

    def __init__(self) -> None:
        self._psutil: Any = importlib.import_module("psutil")

    def cpu(self) -> Cpu:
        times = self._psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # user includes them
        whole = sum(times) - guests
        return Cpu(whole - idle, whole)

    def memory(self) -> tuple[int, int]:
        memory = self._psutil.virtual_memory()
        return memory.total, memory.available


def find_host() -> Host | None:
    """A reader for this machine's CPU and memory; None if none works."""
    if sys.platform.startswith("linux") and os.path.exists("/proc/meminfo"):
        return ProcHost()
    try:
        return PsutilHost()
    except ImportError:
        logger.info("CPU and memory are not sampled: pip install 'rlvitals[hardware]'")
        return None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One card at one moment. None: the card does not report the value."""

    utilisation: float | None = None
    """Percent."""
    memory_used: float | None = None
    """GiB."""
    memory_total: float | None = None
    """GiB."""
    power: float | None = None
    """Watts."""
    temperature: float | None = None
    """Degrees Celsius."""


class VendorGpus(Protocol):
    """The cards of one vendor that this process may use."""

    def read(self) -> list[GpuSample]:
        """One sample per card, in the order in which the process numbers them."""

    def close(self) -> None: ...


def find_gpus() -> VendorGpus | None:
    """The cards of this machine; None if it has none or the vendor's library is not installed."""
    for module, opened in (("pynvml", NvidiaGpus), ("amdsmi", AmdGpus)):
        if importlib.util.find_spec(module) is None:
            continue
        # No driver, no card and an incompatible library are handled alike: the vendor is skipped.
        found: VendorGpus | None = value_or(None, opened, handle=partial(logger.debug, "%s finds no GPU: %s", module))
        if found is not None:
            return found
    if (apple := apple_gpu()) is not None:
        return apple
    if cuda_devices() is not None and importlib.util.find_spec("pynvml") is None:
        logger.info("the GPUs are not sampled: pip install 'rlvitals[hardware]' (NVIDIA), or amdsmi (AMD)")
    return None


class NvidiaGpus:
    """NVIDIA's cards, read with nvidia-ml-py. Raises if there is no driver or no card."""

    def __init__(self) -> None:
        self._nvml: Any = importlib.import_module("pynvml")
        self._nvml.nvmlInit()
        chosen = visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), self._nvml.nvmlDeviceGetCount())
        self._handles = [self._handle(device) for device in chosen]
        if not self._handles:
            raise LookupError("no card is visible to this process")

    def read(self) -> list[GpuSample]:
        return [self._read(handle) for handle in self._handles]

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _handle(self, device: int | str) -> Any:
        by_index, by_uuid = self._nvml.nvmlDeviceGetHandleByIndex, self._nvml.nvmlDeviceGetHandleByUUID
        return by_index(device) if isinstance(device, int) else by_uuid(device)

    def _read(self, handle: Any) -> GpuSample:
        nvml = self._nvml
        memory = _asked(lambda: nvml.nvmlDeviceGetMemoryInfo(handle), nvml.NVMLError)
        power = _asked(lambda: nvml.nvmlDeviceGetPowerUsage(handle), nvml.NVMLError)
        busy = _asked(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu, nvml.NVMLError)
        celsius = _asked(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU), nvml.NVMLError)
        return GpuSample(
            utilisation=None if busy is None else float(busy),
            memory_used=None if memory is None else memory.used / GIB,
            memory_total=None if memory is None else memory.total / GIB,
            power=None if power is None else power / 1000.0,  # NVML reports milliwatts
            temperature=None if celsius is None else float(celsius),
        )


class AmdGpus:
    """AMD's cards, read with amdsmi. Raises if there is no driver or no card."""

    def __init__(self) -> None:
        self._smi: Any = importlib.import_module("amdsmi")
        self._smi.amdsmi_init()
        handles = self._smi.amdsmi_get_processor_handles()
        variable = os.environ.get("HIP_VISIBLE_DEVICES", os.environ.get("ROCR_VISIBLE_DEVICES"))
        self._handles = [handles[device] for device in visible_devices(variable, len(handles)) if type(device) is int]
        if not self._handles:
            raise LookupError("no card is visible to this process")

    def read(self) -> list[GpuSample]:
        return [self._read(handle) for handle in self._handles]

    def close(self) -> None:
        self._smi.amdsmi_shut_down()

    def _read(self, handle: Any) -> GpuSample:
        smi, failure = self._smi, self._smi.AmdSmiException
        busy = _asked(lambda: smi.amdsmi_get_gpu_activity(handle)["gfx_activity"], failure)
        used = _asked(lambda: smi.amdsmi_get_gpu_memory_usage(handle, smi.AmdSmiMemoryType.VRAM), failure)
        total = _asked(lambda: smi.amdsmi_get_gpu_memory_total(handle, smi.AmdSmiMemoryType.VRAM), failure)
        power = _asked(lambda: smi.amdsmi_get_power_info(handle), failure) or {}
        # MI300 and later report the current power, MI200 and Navi an average; the other value is "N/A".
        watts = [_number(power.get(name)) for name in ("current_socket_power", "average_socket_power")]
        celsius = _asked(
            lambda: smi.amdsmi_get_temp_metric(
                handle, smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
            ),
            failure,
        )
        return GpuSample(
            utilisation=_number(busy),
            memory_used=None if used is None else used / GIB,
            memory_total=None if total is None else total / GIB,
            power=next((number for number in watts if number is not None), None),
            temperature=_number(celsius),
        )


class AppleGpu:
    """Apple's GPU, read with torch's Metal backend. It reports the shared memory that this process holds and the most
    that Metal recommends to use, and no other values. Not tested on a real GPU.
    """

    def __init__(self, mps: Any) -> None:
        self._mps = mps

    def read(self) -> list[GpuSample]:
        held, most = self._mps.driver_allocated_memory(), self._mps.recommended_max_memory()
        return [GpuSample(memory_used=held / GIB, memory_total=most / GIB)]

    def close(self) -> None:
        """Nothing to close."""


def apple_gpu() -> AppleGpu | None:
    """The GPU of an Apple processor; None on other machines, or if the process has not imported torch."""
    torch: Any = sys.modules.get("torch")
    try:
        return AppleGpu(torch.mps) if torch is not None and torch.backends.mps.is_available() else None
    except AttributeError:  # torch is too old to support Metal, or is still being imported
        return None


def visible_devices(variable: str | None, count: int) -> list[int | str]:
    """The cards that `CUDA_VISIBLE_DEVICES` lets a process use: indices, or the ids of cards.

    >>> visible_devices(None, 2), visible_devices("1,0", 2), visible_devices("", 2), visible_devices("GPU-6f", 2)
    ([0, 1], [1, 0], [], ['GPU-6f'])
    >>> visible_devices("0,-1,1", 2), visible_devices("0,7,1", 2)
    ([0], [0])
    """
    if variable is None:
        return list(range(count))
    found: list[int | str] = []
    for word in map(str.strip, variable.split(",")):
        if word.startswith(("GPU-", "MIG-")):
            found.append(word)
        elif word.isdecimal() and int(word) < count:
            found.append(int(word))
        else:
            break  # as in CUDA: devices after an invalid entry are not visible
    return found


def combined(samples: list[GpuSample]) -> dict[str, float]:
    """The metrics of one machine's cards: mean utilisation, memory of the fullest card, total power, temperature of the
    hottest card. With several cards, also the values of each card.

    >>> cards = [GpuSample(utilisation=90.0, memory_used=20.0, memory_total=80.0), GpuSample(50.0, 60.0, 80.0)]
    >>> found = combined(cards)
    >>> found["System/GPU_Utilization"], found["System/GPU_Memory_Percent"], found["System/GPU_Utilization/1"]
    (70.0, 75.0, 50.0)
    """
    cards = [_named(sample) for sample in samples]
    found: dict[str, float] = {}
    for name, join in _JOINS.items():
        values = [card[name] for card in cards if name in card]
        if values:
            found[name] = join(values)
    if len(cards) > 1:
        for device, card in enumerate(cards):
            found |= {f"{name}/{device}": value for name, value in card.items()}
    return found


_JOINS: Mapping[str, Callable[[list[float]], float]] = {
    "System/GPU_Utilization": lambda values: sum(values) / len(values),
    "System/GPU_Memory_Used_GB": max,
    "System/GPU_Memory_Total_GB": max,
    "System/GPU_Memory_Percent": max,
    "System/GPU_Power_W": sum,
    "System/GPU_Temperature_C": max,
}


def _named(sample: GpuSample) -> dict[str, float]:
    used, total = sample.memory_used, sample.memory_total
    share = used / total * 100.0 if used is not None and total else None
    values = (
        sample.utilisation, used, total, share, sample.power, sample.temperature,
    )  # fmt: skip
    return {name: value for name, value in zip(_JOINS, values, strict=True) if value is not None}


def _asked(question: Callable[[], Any], failure: type[Exception]) -> Any:
    """The answer, or None if the card does not support the question."""
    try:
        return question()
    except failure:
        return None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None  # amdsmi returns "N/A" for a missing value


class Machine:
    """Samples one machine. `sample` never raises: a source that fails once is not read again."""

    def __init__(
        self, host: Callable[[], Host | None] = find_host, gpus: Callable[[], VendorGpus | None] = find_gpus
    ) -> None:
        self._host, self._gpus = host(), gpus()
        self._cpu = self._asked_cpu()

    def sample(self) -> dict[str, float]:
        """All values that the machine reports, by name. CPU use is the mean since the previous sample."""
        found: dict[str, float] = {}
        earlier, self._cpu = self._cpu, self._asked_cpu()
        if earlier is not None and self._cpu is not None and self._cpu.whole > earlier.whole:
            share = (self._cpu.busy - earlier.busy) / (self._cpu.whole - earlier.whole)
            found["System/CPU_Percent"] = min(max(share, 0.0), 1.0) * 100.0
        with guarded(self._put_host_aside):  # /proc has an unexpected format
            found |= self._memory()
        with guarded(self._put_gpus_aside):  # a card that fell off the bus
            found |= combined(self._gpus.read()) if self._gpus is not None else {}
        return found

    def close(self) -> None:
        if self._gpus is not None:
            with guarded(partial(logger.debug, "the GPUs' library did not close: %s")):
                self._gpus.close()

    def _memory(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if self._host is not None:
            whole, available = self._host.memory()
            found["System/Memory_Percent"] = (whole - available) / whole * 100.0
            found["System/Memory_Used_GB"] = (whole - available) / GIB
            found["System/Memory_Available_GB"] = available / GIB
        if (own := process_memory()) is not None:
            found["System/Process_Memory_GB"] = own.rss / GIB
        return found

    def _asked_cpu(self) -> Cpu | None:
        return value_or(None, self._host.cpu, handle=self._put_host_aside) if self._host is not None else None

    def _put_host_aside(self, error: Exception) -> None:
        logger.warning("the machine is no longer sampled: %s", words_of(error))
        self._host = None

    def _put_gpus_aside(self, error: Exception) -> None:
        logger.warning("the GPUs are no longer sampled: %s", words_of(error))
        self._gpus = None
