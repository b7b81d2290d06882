"""The cost of monitoring for a real training step of a 0.5B policy on a GPU.

    PYTHONPATH=src:benchmarks python benchmarks/gpu_training_step.py [--rounds 12] [--layers 24]

A policy with the shape of Qwen2.5-0.5B (random weights) takes one GRPO step: forward pass, log-probs of the chosen
tokens, clipped loss, backward pass, clipping, AdamW; bf16 autocast, weights in float32. Each round runs in turn:

bare        log-probs by log_softmax and gather, as the loss needs them; nothing is measured
TRL's way   the same, the entropy in pieces of 128 rows, and twelve numbers of the step, one `.item()` each
verl's way  the same, the entropy of float32 logits in pieces of 2,048 rows, and the same numbers
rlvitals    `tokens.stats` in place of log_softmax, `StepStatistics`, and `run.log` with the monitor on

The ways of the frameworks are re-created from the sequence of their tensor operations; none of their code is used. A
step is timed from its start to the end of its work on the device. The figure is the median of each way, divided by that
of the bare one.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import rlvitals
from gpu_timing import machine
from rlvitals.compute import tokens
from rlvitals.compute.step import StepStatistics

ROWS, LENGTH, VOCABULARY = 8, 1024, 151936
LOW, HIGH = 0.2, 0.28


def make_policy(layers):
    shape = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=896, intermediate_size=4864, num_hidden_layers=layers,
        num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=4096,
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen2ForCausalLM(shape).cuda()


def make_batch(seed):
    draw = torch.Generator(device="cuda").manual_seed(seed)
    ids = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=draw, device="cuda")
    ends = torch.randint(LENGTH // 2, LENGTH + 1, (ROWS,), generator=draw, device="cuda")
    mask = torch.arange(LENGTH, device="cuda")[None] < ends[:, None]
    mask[:, : LENGTH // 4] = False  # the prompt
    old = -12 + 0.1 * torch.randn(ROWS, LENGTH, generator=draw, device="cuda")
    rewards = torch.rand(ROWS, generator=draw, device="cuda")
    advantages = ((rewards - rewards.mean()) / rewards.std())[:, None].expand(ROWS, LENGTH)
    return {"ids": ids, "mask": mask, "old": old, "advantages": advantages, "rewards": rewards}


def logprobs_by_softmax(logits, ids):
    rows = zip(logits, ids, strict=True)
    return torch.stack([row.log_softmax(-1).gather(-1, pick.unsqueeze(-1)).squeeze(-1) for row, pick in rows])


@torch.no_grad()
def entropy_like_trl(logits):
    found = []
    for piece in logits.flatten(0, 1).split(128):
        logp = piece.log_softmax(-1)
        found.append(-(logp.exp() * logp).sum(-1))
    return torch.cat(found).view(logits.shape[:2])


@torch.no_grad()
def entropy_like_verl(logits):
    pieces = (piece.float() for piece in logits.flatten(0, 1).split(2048))
    return torch.cat([x.logsumexp(-1) - (x.softmax(-1) * x).sum(-1) for x in pieces]).view(logits.shape[:2])


@torch.no_grad()
def numbers_of_the_step(logp, entropy, batch, loss, norm):
    """The minimum that a trainer logs for a step; each number waits for the device once."""
    mask = batch["mask"]
    count = mask.sum()
    ratio = torch.exp(logp - batch["old"])

    def mean(values):
        return ((values * mask).sum() / count).item()

    drift = logp - batch["old"]
    return {
        "loss": loss.item(), "grad_norm": norm.item(), "entropy": mean(entropy), "ratio": mean(ratio),
        "clip_low": mean((ratio < 1 - LOW).float()), "clip_high": mean((ratio > 1 + HIGH).float()),
        "kl": mean(torch.exp(-drift) - 1 + drift), "reward": batch["rewards"].mean().item(),
        "reward_std": batch["rewards"].std().item(), "ratio_max": torch.where(mask, ratio, 0).max().item(),
        "ratio_min": torch.where(mask, ratio, 9).min().item(), "length": mask.sum(1).float().mean().item(),
    }  # fmt: skip


class Step:
    """One step of one way of training; all ways share the policy and its optimizer."""

    def __init__(self, policy, optimizer, run):
        self.policy, self.optimizer, self.run = policy, optimizer, run
        self.statistics = StepStatistics(clip_low=LOW, clip_high=HIGH)
        self.number = 0

    def take(self, way, batch):
        self.number += 1
        ids = batch["ids"]
        with torch.autocast("cuda", torch.bfloat16):
            logits = self.policy(ids[:, :-1]).logits
        if way == "rlvitals":
            token = tokens.stats(logits, ids[:, 1:], mask=batch["mask"], overwrite_logits=True)
            logp, entropy = token.logprobs, token.entropy.detach()
        else:
            logp = logprobs_by_softmax(logits, ids[:, 1:])
            entropy = {"TRL's way": entropy_like_trl, "verl's way": entropy_like_verl}.get(way, lambda _: None)(logits)
        ratio = torch.exp(logp - batch["old"])
        clipped = ratio.clamp(1 - LOW, 1 + HIGH)
        gains = torch.minimum(ratio * batch["advantages"], clipped * batch["advantages"])
        loss = -(gains * batch["mask"]).sum() / batch["mask"].sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if way == "rlvitals":
            arrival = self.statistics(
                logprobs=logp.detach(), old_logprobs=batch["old"], advantages=batch["advantages"], entropy=entropy,
                mask=batch["mask"], rewards=batch["rewards"],
            )  # fmt: skip
            row = {"loss": loss.detach(), "grad_norm": norm, "statistics": arrival}
            self.run.log(row, step=self.number)
        elif entropy is not None:
            numbers_of_the_step(logp.detach(), entropy, batch, loss.detach(), norm)


WAYS = ("bare", "TRL's way", "verl's way", "rlvitals")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--layers", type=int, default=24)
    options = parser.parse_args()
    print(machine())
    policy = make_policy(options.layers)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, fused=True)
    batches = [make_batch(seed) for seed in range(4)]
    size = sum(weights.numel() for weights in policy.parameters()) / 1e6
    print(f"{size:.0f}M parameters, {ROWS} x {LENGTH} tokens a step, vocabulary {VOCABULARY:,}")
    seconds = {way: [] for way in WAYS}
    memory = {}
    with tempfile.TemporaryDirectory() as folder, rlvitals.start(folder, algorithm="grpo", display="none") as run:
        step = Step(policy, optimizer, run)
        for way in WAYS:  # compiles, fills caches
            for batch in batches[:2]:
                step.take(way, batch)
            torch.cuda.synchronize()
            gc.collect()
            torch.cuda.reset_peak_memory_stats()
            step.take(way, batches[0])
            torch.cuda.synchronize()
            memory[way] = torch.cuda.max_memory_allocated() / 2**30
        for number in range(options.rounds):
            for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
                torch.cuda.synchronize()
                began = time.perf_counter()
                for batch in batches:
                    step.take(way, batch)
                torch.cuda.synchronize()
                seconds[way].append((time.perf_counter() - began) / len(batches))
    bare = statistics.median(seconds["bare"])
    print(f"{'':12} {'ms a step':>10} {'of the bare step':>17} {'least':>7} {'most':>7} {'memory, GiB':>12}")
    for way, found in seconds.items():
        pairs = [mine / theirs for mine, theirs in zip(found, seconds["bare"], strict=True)]
        print(f"{way:12} {statistics.median(found) * 1e3:10.1f} {statistics.median(found) / bare:17.3f} "
              f"{min(pairs):7.3f} {max(pairs):7.3f} {memory[way]:12.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
