"""The cost of one row for the monitor: microseconds per `Monitor.update`, first rows against last, beside its peers.

    python benchmarks/doctor_cost.py [--rows 100000] [--slices 20] [--peers PEERS_VENV/bin/python] [--seconds 60]
                                     [--profile]

The rows hold 60 metric names as TRL's GRPO trainer and verl log them, healthy and noisy, with all default rules on.
`--slices` adds the reward of that many environments. The peers run on the same rows in the interpreter that has them
(see `doctor_peers.py`), one after the other. A peer that scans its whole history again and again is stopped after
`--seconds`, and its row count is printed.

There are two clocks: the time a training step waits (wall), which on a shared machine includes other processes, and the
time the thread itself used (cpu). The targets are checked against both, and each is labelled.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import random
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns, thread_time_ns

TARGET_P50, TARGET_P99 = 300.0, 1000.0
EDGE = 1000
"""The number of first and last rows that are compared to see whether the cost grows."""

# Level and noise of each series in healthy runs.
TRL_GRPO = {
    "loss": (0.01, 0.008), "grad_norm": (0.6, 0.15), "learning_rate": (1e-6, 0.0), "epoch": (0.5, 0.0),
    "num_tokens": (1e7, 0.0), "reward": (0.5, 0.06), "reward_std": (0.3, 0.04), "frac_reward_zero_std": (0.2, 0.06),
    "rewards/correctness_reward/mean": (0.5, 0.06), "rewards/correctness_reward/std": (0.45, 0.02),
    "rewards/format_reward/mean": (0.9, 0.02), "rewards/format_reward/std": (0.2, 0.02), "kl": (0.05, 0.01),
    "entropy": (0.5, 0.04), "completions/mean_length": (300.0, 20.0), "completions/min_length": (60.0, 9.0),
    "completions/max_length": (900.0, 50.0), "completions/clipped_ratio": (0.06, 0.02),
    "completions/mean_terminated_length": (270.0, 20.0), "completions/min_terminated_length": (60.0, 9.0),
    "completions/max_terminated_length": (800.0, 50.0), "clip_ratio/region_mean": (0.01, 0.003),
    "clip_ratio/low_mean": (0.004, 0.001), "clip_ratio/low_min": (0.001, 0.0003),
    "clip_ratio/high_mean": (0.006, 0.002), "clip_ratio/high_max": (0.02, 0.004),
    "step_time": (12.0, 0.8), "tools/call_frequency": (2.0, 0.1),
    "tools/failure_frequency": (0.05, 0.01), "sampling/sampling_logp_difference/mean": (0.012, 0.001),
    "sampling/importance_sampling_ratio/mean": (1.0, 0.005),
}  # fmt: skip
VERL = {
    "critic/score/max": (1.0, 0.0), "critic/score/min": (0.0, 0.0), "critic/advantages/mean": (0.0, 0.02),
    "critic/advantages/max": (2.4, 0.05), "critic/returns/mean": (0.0, 0.02), "critic/values/mean": (0.4, 0.03),
    "critic/vf_loss": (0.05, 0.008), "critic/vf_explained_var": (0.5, 0.06), "critic/vf_clipfrac": (0.01, 0.003),
    "actor/pg_loss": (0.0, 0.01), "actor/ppo_kl": (0.0004, 0.0002), "actor/pg_clipfrac_lower": (0.0, 0.0),
    "actor/kl_coef": (0.001, 0.0), "prompt_length/mean": (150.0, 4.0), "prompt_length/max": (400.0, 20.0),
    "num_turns/mean": (2.6, 0.1), "num_turns/max": (6.0, 0.3), "timing_s/gen": (50.0, 4.0),
    "timing_s/update_actor": (20.0, 1.0), "timing_s/old_log_prob": (6.0, 0.4), "perf/throughput": (1900.0, 90.0),
    "perf/total_num_tokens": (7e5, 2e4), "perf/max_memory_allocated_gb": (54.0, 0.3),
    "perf/max_memory_reserved_gb": (66.0, 0.3), "perf/cpu_memory_used_gb": (120.0, 1.0), "perf/mfu/actor": (0.35, 0.02),
    "rollout_corr/k3_kl": (0.001, 0.0002), "rollout_corr/rollout_is_mean": (1.0, 0.004),
    "rollout_corr/rollout_is_eff_sample_size": (0.95, 0.01),
}  # fmt: skip
SERIES = TRL_GRPO | VERL


def add_slices(count: int) -> None:
    """Add the reward of this many environments to every row."""
    SERIES.update({f"reward/env=env{number}": (0.3 + 0.02 * number, 0.08) for number in range(count)})


def rows(count: int) -> Iterator[dict[str, float]]:
    """The same rows for every tool, made one by one, so that memory stays constant here too."""
    noise = random.Random(0)
    for step in range(1, count + 1):
        learned = 0.3 * (1 - 0.5 ** (step / (0.1 * count)))
        row: dict[str, float] = {"step": step}
        for key, (level, spread) in SERIES.items():
            row[key] = level + spread * noise.gauss(0.0, 1.0)
        row["reward"] += learned - 0.2
        row["rewards/correctness_reward/mean"] += learned - 0.2
        yield row


def timed(take: Callable[[dict[str, float]], object], count: int, seconds: float) -> dict[str, float]:
    """A summary of the microseconds per row on both clocks, and of the memory gained after the first rows."""
    wall, cpu = array("d", bytes(8 * count)), array("d", bytes(8 * count))  # allocated before, so that they do not grow
    early = 0.0
    end = perf_counter_ns() + seconds * 1e9
    number = 0
    for row in rows(count):
        start, used = perf_counter_ns(), thread_time_ns()
        take(row)
        used, now = thread_time_ns() - used, perf_counter_ns()
        wall[number], cpu[number] = (now - start) / 1000, used / 1000
        number += 1
        if number == EDGE:
            early = resident()
        if now > end:
            break
    grown = resident() - early if number > EDGE else 0.0
    return {"rows": number, "grown_kib": grown, **summary("wall", wall[:number]), **summary("cpu", cpu[:number])}


def resident() -> float:
    """The process's memory in KiB; 0 if the system does not report it."""
    gc.collect()
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4.0
    except OSError:
        return 0.0


def summary(clock: str, spent: Sequence[float]) -> dict[str, float]:
    def share(values: Sequence[float], part: float) -> float:
        ordered = sorted(values)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)]

    edge = min(EDGE, max(1, len(spent) // 2))
    found = {
        "p50": share(spent, 0.5),
        "p99": share(spent, 0.99),
        "max": max(spent),
        "mean": sum(spent) / len(spent),
        "first": share(spent[:edge], 0.5),
        "last": share(spent[-edge:], 0.5),
    }
    return {f"{clock}_{name}": value for name, value in found.items()}


def run_ours(count: int, seconds: float) -> dict[str, float]:
    from rlvitals.health.monitor import Monitor

    monitor = Monitor()
    found = timed(monitor.update, count, seconds)
    if monitor.problems:
        print("rules that failed:", monitor.problems, file=sys.stderr)
    found["findings"] = len(monitor.findings)
    return found


def run_peer(tool: str, count: int, seconds: float) -> dict[str, float]:
    """Runs in the interpreter of the peers."""
    import doctor_peers

    peer = {"rldoctor": doctor_peers.RlDoctor, "rlwatch": doctor_peers.RlWatch}[tool]()
    peer.open({"algorithm": "grpo", "config": {}})
    alerts = 0

    def take(row: dict[str, float]) -> None:
        nonlocal alerts
        alerts += len(peer.take(row))

    return {**timed(take, count, seconds), "findings": alerts}


def profile(count: int) -> None:
    from rlvitals.health.monitor import Monitor

    monitor = Monitor()
    material = list(rows(count))
    with cProfile.Profile() as profiler:
        for row in material:
            monitor.update(row)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def report(tool: str, found: dict[str, float]) -> None:
    for clock in ("wall", "cpu"):
        p50, p99, most, mean, first, last = (
            found[f"{clock}_{name}"] for name in ("p50", "p99", "max", "mean", "first", "last")
        )
        print(
            f"{tool:<10}{clock:<6}{found['rows']:>9,}{p50:>8.0f}{p99:>9.0f}{most:>10.0f}{mean:>9.0f}"
            f"{first:>16.0f}{last:>15.0f}{found['grown_kib']:>7.0f}{found['findings']:>10}"
        )
        if tool == "rlvitals":
            met = p50 <= TARGET_P50 and p99 <= TARGET_P99
            print(
                f"{'':<16}p50 <= {TARGET_P50:.0f} and p99 <= {TARGET_P99:.0f}: {'met' if met else 'missed'};", end=" "
            )
            print("flat" if last <= 1.2 * first else "not flat")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="the longest a peer may take")
    parser.add_argument("--peers", help="the Python interpreter that has rldoctor and rlwatch")
    parser.add_argument("--profile", action="store_true", help="say where the time goes instead")
    parser.add_argument("--tool", choices=["rlvitals", "rldoctor", "rlwatch"], help=argparse.SUPPRESS)
    parser.add_argument("--slices", type=int, default=0, help="environments whose reward every row has besides")
    asked = parser.parse_args()
    add_slices(asked.slices)
    if asked.profile:
        profile(min(asked.rows, 3000))
        return 0
    if asked.tool:
        found = (
            run_ours(asked.rows, 1e9) if asked.tool == "rlvitals" else run_peer(asked.tool, asked.rows, asked.seconds)
        )
        print(json.dumps(found))
        return 0
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(f"{len(SERIES)} metrics a row, {asked.rows:,} rows, microseconds a row; load average before: {load:.1f}\n")
    heads = (
        "",
        "clock",
        "rows",
        "p50",
        "p99",
        "max",
        "mean",
        f"p50 first {EDGE}",
        f"p50 last {EDGE}",
        "KiB",
        "findings",
    )
    print("{:<10}{:<6}{:>9}{:>8}{:>9}{:>10}{:>9}{:>16}{:>15}{:>7}{:>10}".format(*heads))
    for tool in ("rlvitals", "rldoctor", "rlwatch"):
        python = sys.executable if tool == "rlvitals" else asked.peers
        if python is None:
            print(f"{tool:<10}skipped: no interpreter given that has it (--peers)")
            continue
        options = ["--tool", tool, "--rows", str(asked.rows), "--seconds", str(asked.seconds)]
        options += ["--slices", str(asked.slices)]
        done = subprocess.run([python, __file__, *options], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{tool:<10}skipped: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
            continue
        report(tool, json.loads(done.stdout.strip().splitlines()[-1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
