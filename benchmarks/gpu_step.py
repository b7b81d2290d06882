"""A step's statistics on a GPU: fused and queued, compared with one `.item()` each, a stacked copy and torch.compile.

    PYTHONPATH=src:benchmarks python benchmarks/gpu_step.py [--quick]

The plain ways compute a subset of the same numbers with tensor operations, as trainers do.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import torch

import rlvitals
from gpu_timing import device_ms, graph_ms, host_us, machine, met, waits
from rlvitals.compute.step import StepStatistics

ROWS, LENGTH = 512, 4096
LOW, HIGH = 0.2, 0.28


def make_step(seed):
    draw = torch.Generator(device="cuda").manual_seed(seed)

    def normal(scale):
        return scale * torch.randn(ROWS, LENGTH, generator=draw, device="cuda")

    logp = -6 * torch.rand(ROWS, LENGTH, generator=draw, device="cuda") ** 3
    ends = torch.randint(LENGTH // 16, LENGTH + 1, (ROWS,), generator=draw, device="cuda")
    rewards = (torch.rand(ROWS, generator=draw, device="cuda") > 0.5).float()
    values = 0.5 + normal(0.4)
    return {
        "logprobs": logp,
        "old_logprobs": logp + normal(0.15),
        "ref_logprobs": logp + normal(0.3),
        "rollout_logprobs": logp + normal(0.02),
        "advantages": rewards[:, None] - 0.5 + normal(0.3),
        "returns": rewards[:, None] + normal(0.4),
        "values": values,
        "old_values": values + normal(0.2),
        "entropy": torch.rand(ROWS, LENGTH, generator=draw, device="cuda"),
        "mask": torch.arange(LENGTH, device="cuda") < ends[:, None],
        "rewards": rewards,
        "prompt_lengths": torch.randint(64, 1024, (ROWS,), generator=draw, device="cuda"),
    }


def by_operations(data, select):
    """The numbers one after the other: over the selected tokens as in trainers, or with where(), which never waits."""
    mask = data["mask"]
    count = mask.sum()

    def mean(x):
        return torch.where(mask, x, 0.0).sum() / count

    def spread(x):
        if select:
            tokens = x[mask]
            return [tokens.mean(), tokens.std(), tokens.min(), tokens.max()]
        average = mean(x)
        deviation = (torch.where(mask, x - average, 0.0).square().sum() / (count - 1)).sqrt()
        return [average, deviation, torch.where(mask, x, torch.inf).min(), torch.where(mask, x, -torch.inf).max()]

    logp, old, ref, rollout = (data[f"{name}logprobs"] for name in ("", "old_", "ref_", "rollout_"))
    log_ratio, adv = logp - old, data["advantages"]
    ratio, weight = log_ratio.exp(), (old - rollout).exp()
    drift, gap, residual = logp - ref, old - rollout, data["returns"] - data["values"]
    moved = data["old_values"] + (data["values"] - data["old_values"]).clamp(-0.2, 0.2) - data["returns"]
    upper, lower = ((ratio > 1 + HIGH) & (adv > 0)).float(), ((ratio < 1 - LOW) & (adv < 0)).float()
    lengths = mask.sum(1).float()
    found = []
    for x in (logp, log_ratio, ratio, weight, gap.abs(), adv, data["returns"], data["values"], data["entropy"]):
        found += spread(x)
    found += [mean(x) for x in (
        old, ref, rollout, log_ratio.square() / 2, ratio - 1 - log_ratio, upper, lower, upper + lower,
        ((ratio > 3) & (adv < 0)).float(), -torch.minimum(ratio * adv, ratio.clamp(1 - LOW, 1 + HIGH) * adv),
        drift, drift.square() / 2, (-drift).exp() - 1 + drift, -gap, gap.square() / 2, weight - 1 - gap,
        (old.exp() - rollout.exp()).abs(), residual.square(), torch.maximum(residual.square(), moved.square()) / 2,
        (moved.square() > residual.square()).float(),
    )]  # fmt: skip
    for x in (lengths, data["rewards"], data["prompt_lengths"].float()):
        found += [x.mean(), x.std(), x.min(), x.max()]
    rows = lengths.clamp(min=1)
    for x in (log_ratio, logp, data["entropy"], drift):
        per_row = torch.where(mask, x, 0.0).sum(1) / rows
        found += [per_row.mean(), per_row.max()]
    return found


def item_way(data):
    return [number.item() for number in by_operations(data, select=True)]


def stacked(data):
    return torch.stack([number.float() for number in by_operations(data, select=False)])


def stacked_way(data):
    return stacked(data).tolist()


def largest_error(made, data):
    """The largest error against the plain operations in float64, which the tests check against numpy."""
    plain = StepStatistics(clip_low=LOW, clip_high=HIGH, dual_clip=3.0, use_kernels=False)(**data).values()
    got = made(**data).values()
    return max(abs(got[name].number - v.number) / max(abs(v.number), 1e-2) for name, v in plain.items())


def behind_work(way, before=lambda: None):
    """How long the call blocks the host while the device has 20 ms of work."""
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    times = []
    for _ in range(5):
        before()
        torch.cuda.synchronize()
        for _ in range(15):
            torch.mm(a, a)
        start = time.perf_counter()
        way()
        times.append(time.perf_counter() - start)
    return sorted(times)[2] * 1e3


def report_logging(count=20):
    """A row of device scalars: `run.log` copies them in one transfer and returns, `.item()` waits for each."""
    scalars = {f"metric/{index}": torch.rand((), device="cuda") for index in range(count)}
    with tempfile.TemporaryDirectory() as folder, rlvitals.start(folder, monitor=False, display="none") as run:

        def held():
            run.log(scalars)

        def read():
            run.log({name: scalar.item() for name, scalar in scalars.items()})

        for name, way in (("held back", held), (".item() each", read)):
            print(f"run.log of {count} device scalars, {name:14s} {host_us(way, 100):6.0f} us, {waits(way)} waits, "
                  f"behind 20 ms of work {behind_work(way, before=run.flush):6.2f} ms")  # fmt: skip
            run.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without torch.compile")
    options = parser.parse_args()
    print(machine())
    sets = [make_step(seed) for seed in range(4)]  # in turn, so that the cache does not hold the inputs
    made = StepStatistics(clip_low=LOW, clip_high=HIGH, dual_clip=3.0)
    wrong = largest_error(made, sets[0])
    valid = int(sets[0]["mask"].sum())
    print(f"[{ROWS}, {LENGTH}], {valid} tokens count: {len(made(**sets[0]).values())} numbers, "
          f"by operations {len(by_operations(sets[0], False))}; error {wrong:.1e} {met(wrong, 5e-6)}")  # fmt: skip
    turn = iter(range(10**9))

    def next_set():
        return sets[next(turn) % len(sets)]

    device = graph_ms(lambda: [made.enqueue(**data) for data in sets], 3) / len(sets)
    made(**sets[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made.enqueue(**sets[0])

    def replay():
        graph.replay()
        return made.arrival()

    ways = [
        ("rlvitals", lambda: made(**next_set())),
        ("rlvitals in a CUDA graph", replay),
        ("one .item() each", lambda: item_way(next_set())),
        ("stacked, one copy", lambda: stacked_way(next_set())),
    ]
    if not options.quick:
        compiled = torch.compile(stacked, dynamic=False)
        ways.append(("torch.compile, one copy", lambda: compiled(next_set()).tolist()))
    print(f"{'':28s} {'host us':>9s} {'device ms':>10s} {'waits':>6s} {'behind 20 ms of work, ms':>26s}")
    host = {}
    for name, way in ways:
        host[name] = host_us(way, 100)
        spent = device if name == "rlvitals" else device_ms(way)
        print(f"{name:28s} {host[name]:9.0f} {spent:10.3f} {waits(way):6d} {behind_work(way):26.2f}", flush=True)
    print(f"device {met(device, 0.15)}; host {met(host['rlvitals'], 60)}; in a graph "
          f"{met(host['rlvitals in a CUDA graph'], 25)}; waits {met(waits(ways[0][1]), 0)}")  # fmt: skip

    report_logging()


if __name__ == "__main__":
    main()
