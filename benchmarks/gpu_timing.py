"""Measurements of the GPU benchmarks: device time by events, host time by the clock, waits as torch reports them."""

from __future__ import annotations

import gc
import statistics
import time
import warnings

import torch

QUANTITY = 20
WARM_UP_SECONDS = 0.1


HEAD_START_CYCLES = 2_000_000
"""About a millisecond: longer than the host takes to queue the measured work."""


def device_ms(work, repeats=QUANTITY):
    """The median time of one call on the device, after a warm-up of a tenth of a second.

    The device is kept busy while the host queues the call, so the time of the host is not included.
    """
    started = time.perf_counter()
    while time.perf_counter() - started < WARM_UP_SECONDS:
        work()
        torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(HEAD_START_CYCLES)
        before.record()
        work()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after))
    return statistics.median(times)


def graph_ms(work, calls=10):
    """Device time of one call without launch overhead: the time of a graph of many calls, divided by their number."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    return device_ms(graph.replay) / calls


def host_us(work, repeats=200):
    """The median time that one call blocks the host; the device is idle before each."""
    for _ in range(5):
        work()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def waits(work):
    """Synchronising calls of one run, as torch reports them."""
    work()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


def extra_gib(work):
    """Peak memory above the memory in use before."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = work()
    torch.cuda.synchronize()
    del kept
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def machine():
    """The device and the libraries, in one line."""
    import triton

    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}"


def met(got, target):
    return f"{'met' if got <= target else 'MISSED'} (at most {target:g})"
