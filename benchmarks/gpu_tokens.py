"""Log-probs and entropies from logits on a GPU, compared with the ways of TRL, verl, ROLL and torch.compile.

    PYTHONPATH=src:benchmarks python benchmarks/gpu_tokens.py [--tune] [--quick]

The lower bound is the time to read the logits once at the measured bandwidth. The other ways re-create the sequence of
tensor operations of each framework from its definition; none of their code is used.
"""

from __future__ import annotations

import argparse
import gc

import torch
import triton
import triton.language as tl

from gpu_timing import device_ms, extra_gib, machine, met
from rlvitals.compute import tokens, triton_tokens

ROWS, LENGTH, VOCABULARY = 8, 2048, 151936
CHECKED_ROWS = 48
TILES = [
    (rows, columns, warps, stages)
    for rows, columns, warps in ((4, 512, 2), (8, 512, 2), (4, 256, 1), (8, 256, 1), (4, 1024, 4), (2, 1024, 4))
    for stages in (1, 2, 3)
]


@triton.jit
def read_only(x_ptr, out_ptr, ITERATIONS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    program = tl.program_id(0).to(tl.int64)
    most = tl.full((BLOCK,), -1e30, dtype=tl.float32)
    for index in range(ITERATIONS):
        at = (program * ITERATIONS + index) * BLOCK + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.load(x_ptr + at, eviction_policy="evict_first").to(tl.float32))
    tl.store(out_ptr + program, tl.max(most, axis=0))


def read_bandwidth(logits):
    """Bytes per millisecond of a kernel that reads everything and keeps a maximum."""
    best = 0.0
    for block, warps, iterations in ((4096, 4, 8), (8192, 8, 8), (4096, 4, 16), (16384, 8, 4)):
        programs = logits.numel() // (block * iterations)
        out = torch.empty(programs, device="cuda")
        ms = device_ms(
            lambda grid=programs, i=iterations, b=block, w=warps, o=out: read_only[(grid,)](
                logits, o, ITERATIONS=i, BLOCK=b, num_warps=w
            ),
            10,
        )
        best = max(best, programs * block * iterations * logits.element_size() / ms)
    copied = torch.empty_like(logits)
    ms = device_ms(lambda: copied.copy_(logits), 10)
    return max(best, 2 * logits.numel() * logits.element_size() / ms)


def by_sequence(logits, ids):
    rows = zip(logits, ids, strict=True)
    return torch.cat([row.log_softmax(-1).gather(-1, pick.unsqueeze(-1)).squeeze(-1) for row, pick in rows])


def trl_way(logits, ids):
    """log_softmax of each sequence in the logits' own type; entropy in pieces of 128 rows."""
    chosen = by_sequence(logits, ids)
    entropies = []
    for piece in logits.flatten(0, 1).split(128):
        logp = piece.log_softmax(-1)
        entropies.append(-(logp.exp() * logp).sum(-1))
    return chosen, torch.cat(entropies)


def _entropy_by_logsumexp(x):
    return x.logsumexp(-1) - (x.softmax(-1) * x).sum(-1)


def verl_way(logits, ids):
    """log_softmax of each sequence, entropy of pieces of 2048 rows in float32."""
    chosen = by_sequence(logits, ids)
    entropies = [_entropy_by_logsumexp(piece.float()) for piece in logits.flatten(0, 1).split(2048)]
    return chosen, torch.cat(entropies)


def roll_way(logits, ids):
    """Both from float32 copies of the whole tensor."""
    chosen = logits.float().log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return chosen.flatten(), _entropy_by_logsumexp(logits.float()).flatten()


def plain_way(logits, ids):
    """One float32 expression, which a compiler may fuse."""
    x = logits.flatten(0, 1).float()
    lse = x.logsumexp(-1)
    return x.gather(-1, ids.reshape(-1, 1)).squeeze(-1) - lse, lse - (x.softmax(-1) * x).sum(-1)


def our_way(logits, ids):
    found = tokens.stats(logits, ids)
    return found.logprobs.flatten(), found.entropy.flatten()


def make_logits(seed):
    draw = torch.Generator(device="cuda").manual_seed(seed)
    logits = torch.empty(ROWS, LENGTH, VOCABULARY, dtype=torch.bfloat16, device="cuda").normal_(0, 2, generator=draw)
    ids = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=draw, device="cuda")
    peaks = torch.rand(ROWS, LENGTH, 1, generator=draw, device="cuda") * 25
    logits.scatter_(2, ids.unsqueeze(2), peaks.to(torch.bfloat16))
    return logits, ids


def reference(logits, ids, some, other=None):
    logp = logits.flatten(0, 1)[some].double().log_softmax(-1)
    chosen = logp.gather(-1, ids.flatten()[some].unsqueeze(-1)).squeeze(-1)
    p = logp.exp()
    kl = None
    if other is not None:
        kl = (p * (logp - other.flatten(0, 1)[some].double().log_softmax(-1))).sum(-1)
    return chosen, -(p * logp).sum(-1), kl


def error(got, want, some):
    return ((got[some].double() - want).abs() / want.abs().clamp(min=1)).max().item()


def tune(logits, other, ids):
    """Find the fastest tiles on this device; the constants of triton_tokens come from this."""
    for name, is_pair in (("TILE", False), ("PAIR_TILE", True)):
        kept, timed = getattr(triton_tokens, name), []
        for tile in TILES:
            setattr(triton_tokens, name, tile)
            ms = device_ms(lambda pair=is_pair: tokens.stats(logits, ids, other_logits=other if pair else None), 7)
            timed.append((round(ms, 3), tile))
        setattr(triton_tokens, name, kept)
        print(name, sorted(timed))
        setattr(triton_tokens, name, min(timed)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--quick", action="store_true", help="without torch.compile and the head")
    options = parser.parse_args()
    print(machine())
    report_logits(options)
    if not options.quick:
        report_head()


def report_logits(options):
    logits, ids = make_logits(1)
    some = torch.randperm(ROWS * LENGTH, device="cuda")[:CHECKED_ROWS]
    chosen, entropy, _ = reference(logits, ids, some)
    per_ms = read_bandwidth(logits)
    floor = logits.numel() * logits.element_size() / per_ms
    print(f"logits {ROWS}x{LENGTH}x{VOCABULARY} bf16; one read {floor:.3f} ms at {per_ms / 1e9:.2f} TB/s")
    if options.tune:
        tune(logits, logits.clone(), ids)
    ways = [("rlvitals", our_way), ("TRL's way", trl_way), ("verl's way", verl_way), ("ROLL's way", roll_way),
            ("plain torch, float32", plain_way)]  # fmt: skip
    if not options.quick:
        ways.append(("torch.compile of it", torch.compile(plain_way, dynamic=False)))
    print(f"{'log-prob + entropy':28s} {'ms':>8s} {'x floor':>8s} {'+GiB':>7s} {'error logp':>11s} {'entropy':>9s}")
    ours = floor
    for name, way in ways:
        found = way(logits, ids)
        errors = error(found[0], chosen, some), error(found[1], entropy, some)
        del found
        ms = device_ms(lambda w=way: w(logits, ids))
        memory = extra_gib(lambda w=way: w(logits, ids))
        ours = ms if name == "rlvitals" else ours
        print(f"{name:28s} {ms:8.2f} {ms / floor:8.2f} {memory:7.2f} {errors[0]:11.1e} {errors[1]:9.1e}", flush=True)
        if name == "rlvitals":
            print(f"    floor {met(ms / floor, 1.10)}; error {met(max(errors), 5e-6)}")
        gc.collect()
        torch.cuda.empty_cache()
    half = torch.rand(ROWS, LENGTH, device="cuda") < 0.5
    print(f"half of the rows masked      {device_ms(lambda: tokens.stats(logits, ids, mask=half)):8.2f}")
    print(f"with top-1                   {device_ms(lambda: tokens.stats(logits, ids, top1=True)):8.2f}")
    report_kl(logits, ids, some, floor)
    report_backward(logits, ids, floor)


def report_kl(logits, ids, some, floor):
    other = torch.empty_like(logits)
    for row in range(ROWS):
        other[row] = logits[row] + 0.3 * torch.randn(LENGTH, VOCABULARY, dtype=torch.bfloat16, device="cuda")
    want = reference(logits, ids, some, other)[2]
    got = tokens.stats(logits, ids, other_logits=other).kl.flatten()
    ms, wrong = device_ms(lambda: tokens.stats(logits, ids, other_logits=other)), error(got, want, some)
    print(f"with the exact KL            {ms:8.2f} {ms / floor / 2:8.2f}  of two reads: {met(ms / floor / 2, 1.2)}; "
          f"error {wrong:.1e} {met(wrong, 5e-6)}")  # fmt: skip


def report_backward(logits, ids, floor):
    given = logits.detach().requires_grad_()
    found = tokens.stats(given, ids)
    up = torch.randn_like(found.logprobs)

    def back(entropy):
        given.grad = None
        total = (found.logprobs * up).sum() + (found.entropy.sum() if entropy else 0)
        total.backward(retain_graph=True)

    for entropy in (False, True):
        ms = device_ms(lambda e=entropy: back(e))
        print(
            f"backward{', with entropy' if entropy else '':20s} {ms:8.2f} {ms / floor / 2:8.2f}  of a read and a write"
        )


def report_head(width=4096):
    ids = torch.randint(VOCABULARY, (ROWS, LENGTH), device="cuda")
    hidden = torch.randn(ROWS, LENGTH, width, dtype=torch.bfloat16, device="cuda")
    weight = torch.randn(VOCABULARY, width, dtype=torch.bfloat16, device="cuda") * 0.02
    flat = hidden.flatten(0, 1)
    gemm = device_ms(lambda: [torch.mm(part, weight.T) for part in flat.split(2048)], 5)
    ms = device_ms(lambda: tokens.from_hidden(hidden, weight, ids), 5)
    memory = extra_gib(lambda: tokens.from_hidden(hidden, weight, ids))
    print(f"from hidden states           {ms:8.2f}  (the products alone {gemm:.2f}); +{memory:.2f} GiB "
          f"instead of {ROWS * LENGTH * VOCABULARY * 2 / 2**30:.2f} for the logits")  # fmt: skip


if __name__ == "__main__":
    main()
