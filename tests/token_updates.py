"""Updates of a tiny model, computed by plain torch operations without `rlvitals.compute`: the metrics that a trainer
would log, correct or with a planted fault, and the tokens that it would record.
"""

from __future__ import annotations

import torch

from rlvitals.records import TRAINED_ROLLOUTS, Group, Rollout, TokenTrace
from rlvitals.store.rollout_forms import rounded

CLIP, KL = (0.2, 0.28), 0.05
MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")
HORIZON, VOCABULARY, GROUP, SIZE = 64, 23, 4, 2


class Update:
    """One update of a tiny model: its tokens, and the numbers a trainer would log."""

    def __init__(self, seed=0, mode="token-mean", dtype=torch.float32, *, groups=4, fault="", has_kl=True):
        draw = torch.Generator().manual_seed(seed)
        rows = groups * GROUP
        self.mode, self.dtype, self.fault, self.has_kl = mode, dtype, fault, has_kl
        self.lengths = torch.randint(3, 40, (rows,), generator=draw)
        width = int(self.lengths.max()) + 1
        self.ids = torch.randint(0, VOCABULARY, (rows, width + 1), generator=draw)
        inside = torch.arange(width) < self.lengths[:, None]
        self.inside = inside
        tool = (torch.arange(width) % 11 >= 8) & (self.lengths[:, None] > 15)  # output of a tool
        self.mask = (inside & ~tool).double()
        start = torch.randn(VOCABULARY, VOCABULARY, generator=draw)

        def read(noise):
            logits = start + noise * torch.randn(VOCABULARY, VOCABULARY, generator=draw)
            every = logits[self.ids[:, :-1]].log_softmax(-1)
            picked = every.gather(-1, self.ids[:, 1:, None])[..., 0]
            return picked.to(dtype).double(), -(every.exp() * every).sum(-1).to(dtype).double()

        self.new, self.entropies = (x * inside for x in read(0.3))  # padding has zeros
        self.old, self.engine, self.reference = (read(noise)[0] * inside for noise in (0.0, 0.02, 0.5))
        self.rewards = torch.rand(groups, GROUP, generator=draw).double()
        apart = self.rewards - self.rewards.mean(dim=1, keepdim=True)
        self.advantages = (apart / self.rewards.std(dim=1, keepdim=True, correction=0)).flatten()[
            :, None
        ] + 0 * self.mask

    def averaged(self, x, mask):
        sums, lengths = (x * mask).sum(1), mask.sum(1)
        if self.mode == "token-mean":
            return sums.sum() / lengths.sum()
        if self.mode == "seq-mean-token-mean":
            return (sums / lengths.clamp(min=1)).mean()
        return (sums / HORIZON).mean()

    def cut(self, x, mask):
        """The average of `x`. With the fault "microbatch" it is the mean of the averages of micro-batches."""
        if self.fault != "microbatch":
            return self.averaged(x, mask)
        parts = zip(x.split(SIZE), mask.split(SIZE), strict=True)
        return torch.stack([self.averaged(part, kept) for part, kept in parts]).mean()

    def log(self):
        low, high = CLIP
        mask = self.mask
        if self.fault.startswith("mask"):
            mask = torch.cat([torch.zeros(len(mask), 1), mask[:, :-1]], dim=1)
        if self.fault == "mask inside":
            mask = mask * self.inside
        advantages = -self.advantages if self.fault == "sign" else self.advantages
        ratio = (self.new - self.old).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
        apart = self.reference - self.new
        k3 = apart.exp() - apart - 1
        losses = -gain + (KL * k3 if self.has_kl else 0)
        loss = self.cut(losses.to(self.dtype).double(), mask) * (8 if self.fault == "scale" else 1)
        binds = ((ratio > 1 + high) & (advantages > 0)) | ((ratio < 1 - low) & (advantages < 0))
        gap = (self.old - self.engine).abs()
        used = mask > 0
        row = {
            "train.loss": loss, "policy.ratio.mean": ratio[used].mean(), "policy.ratio.max": ratio[used].max(),
            "policy.ratio.min": ratio[used].min(), "entropy.mean": self.entropies[used].mean(),
            "mismatch.logp_abs_diff.mean": gap[used].mean(), "mismatch.logp_abs_diff.max": gap[used].max(),
        }  # fmt: skip
        if self.fault != "sign":
            row["policy.clip_fraction"] = binds[used].double().mean()
        if self.has_kl:
            row["kl_ref.k3"] = k3[used].mean()
            row["kl_ref.k1"] = (-apart)[used].mean()
        return {name: float(number.to(self.dtype)) for name, number in row.items()}

    def groups(self, kept=None):
        """The record, rounded as it is written; only the first `kept` rollouts if that is given."""
        rollouts = []
        for row, length in enumerate(self.lengths.tolist()):
            column = lambda x, row=row, length=length: tuple(x[row, :length].tolist())  # noqa: E731
            trace = TokenTrace(
                ids=tuple(self.ids[row, 1 : length + 1].tolist()), trained=tuple(map(bool, column(self.mask))),
                logprobs=column(self.old), engine_logprobs=column(self.engine), new_logprobs=column(self.new),
                reference_logprobs=column(self.reference) if self.has_kl else (),
                entropies=column(self.entropies), advantages=column(self.advantages),
            )  # fmt: skip
            reward, advantage = float(self.rewards.flatten()[row]), float(self.advantages[row, 0])
            is_kept = kept is None or row < kept
            rollouts.append(Rollout(reward=reward, advantage=advantage, trace=trace if is_kept else None))
        meta = {TRAINED_ROLLOUTS: len(rollouts)}
        parts = [tuple(rollouts[at : at + GROUP]) for at in range(0, len(rollouts), GROUP)]
        return [rounded(Group(rollouts=part, kept=True, meta=meta, step=7)) for part in parts]

    @property
    def config(self):
        return {
            "aggregation": self.mode, "clip_low": CLIP[0], "clip_high": CLIP[1], "max_context": HORIZON,
            "gradient_accumulation_steps": 8, **({"kl_coef": KL} if self.has_kl else {}),
        }  # fmt: skip
