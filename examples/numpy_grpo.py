"""GRPO on a small policy, in plain numpy: adds two digits, token by token. Recorded with rlvitals.

    python examples/numpy_grpo.py out/demo [--steps 500] [--learning-rate 0.003] [--seed 0]

A one-layer network is first trained a little by imitation, then improved by group-relative policy gradients with a KL
penalty to its starting point. Nothing is faked: every logged number is computed from the samples of that step. Takes a
few seconds on a laptop.

With `--learning-rate 0.1`, thirty times too high, it really fails. It carries out the doctor's requests, so it stops
early.
"""

from __future__ import annotations

import argparse
import os
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # matrices this small are slower with threads; before numpy

import numpy as np
from numpy.typing import NDArray

import rlvitals
from rlvitals import values
from rlvitals.capture.run import Run

Array = NDArray[np.float64]
Tokens = NDArray[np.int64]

EOS, START, VOCAB = 10, 11, 12
MAX_TOKENS = 4
GROUP, PROMPTS = 16, 16
BETA, CLIP = 0.05, 1.0


class Policy:
    """One hidden layer over (first digit, second digit, position, previous token) -> next token."""

    def __init__(self, rng: np.random.Generator, learning_rate: float = 0.003) -> None:
        inputs = 10 + 10 + MAX_TOKENS + VOCAB
        self.weights = [
            rng.normal(0, 0.3, (inputs, 64)),
            np.zeros(64),
            rng.normal(0, 0.3, (64, VOCAB)),
            np.zeros(VOCAB),
        ]
        self._moments = [(np.zeros_like(w), np.zeros_like(w)) for w in self.weights]
        self._updates = 0
        self.param_groups = [{"lr": learning_rate}]  # as in torch's optimizers, so that `Actions` can lower it

    def forward(self, inputs: Array) -> tuple[Array, Array]:
        """Hidden activations and log-probabilities."""
        hidden = np.tanh(inputs @ self.weights[0] + self.weights[1])
        logits = hidden @ self.weights[2] + self.weights[3]
        logits = logits - logits.max(axis=-1, keepdims=True)
        return hidden, logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    @property
    def learning_rate(self) -> float:
        return self.param_groups[0]["lr"]

    def update(self, inputs: Array, hidden: Array, grad_logits: Array) -> float:
        """One Adam step down the gradient; returns the gradient's norm before clipping."""
        back = (grad_logits @ self.weights[2].T) * (1 - hidden**2)
        grads = [inputs.T @ back, back.sum(axis=0), hidden.T @ grad_logits, grad_logits.sum(axis=0)]
        norm = float(np.sqrt(sum((grad**2).sum() for grad in grads)))
        scale = min(1.0, CLIP / (norm + 1e-12))
        self._updates += 1
        for weight, grad, (first, second) in zip(self.weights, grads, self._moments, strict=True):
            first += 0.1 * (scale * grad - first)
            second += 0.01 * ((scale * grad) ** 2 - second)
            unbiased = first / (1 - 0.9**self._updates), second / (1 - 0.99**self._updates)
            weight -= self.learning_rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
        return norm


class Rollouts(NamedTuple):
    """Sampled answers, flattened to the tokens that were actually written."""

    tokens: Tokens  # rollout x position, EOS after the end
    mask: NDArray[np.bool_]
    inputs: Array  # written token x features
    rewards: Array


def features(prompts: Tokens, position: int, previous: Tokens) -> Array:
    """One-hot inputs for every rollout at one position."""
    eye = np.eye(VOCAB)
    place = np.zeros((len(prompts), MAX_TOKENS))
    place[:, position] = 1
    return np.concatenate([np.eye(10)[prompts[:, 0]], np.eye(10)[prompts[:, 1]], place, eye[previous]], axis=1)


def target(prompts: Tokens) -> Tokens:
    """The right answer: the digits of the sum, then EOS."""
    answers = np.full((len(prompts), MAX_TOKENS), EOS)
    for row, total in enumerate(prompts.sum(axis=1)):
        digits = [int(digit) for digit in str(total)]
        answers[row, : len(digits)] = digits
    return answers


def score(prompts: Tokens, tokens: Tokens, mask: NDArray[np.bool_]) -> Array:
    """1 for the right sum, a part of that for right digits, otherwise 0."""
    right = target(prompts)
    digits = ((tokens == right) & (right != EOS)).sum(axis=1) / (right != EOS).sum(axis=1)
    exact = (np.where(mask, tokens, EOS) == right).all(axis=1)
    return np.where(exact, 1.0, 0.3 * digits)


def sample(policy: Policy, prompts: Tokens, rng: np.random.Generator, *, greedy: bool = False) -> Rollouts:
    """Let the policy write one answer to each prompt."""
    count = len(prompts)
    tokens = np.full((count, MAX_TOKENS), EOS)
    mask = np.zeros((count, MAX_TOKENS), dtype=bool)
    inputs = np.zeros((count, MAX_TOKENS, 10 + 10 + MAX_TOKENS + VOCAB))
    previous, writing = np.full(count, START), np.ones(count, dtype=bool)
    for position in range(MAX_TOKENS):
        inputs[:, position] = features(prompts, position, previous)
        _, logp = policy.forward(inputs[:, position])
        noise = 0 if greedy else rng.gumbel(size=logp.shape)
        chosen = np.argmax(logp + noise, axis=1)
        tokens[writing, position] = chosen[writing]
        mask[:, position] = writing
        writing = writing & (chosen != EOS)
        previous = chosen
    return Rollouts(tokens, mask, inputs[mask], score(prompts, tokens, mask))


def imitate(policy: Policy, rng: np.random.Generator, steps: int = 300) -> None:
    """A short supervised warm-up, so that some answers are right and there is something to reinforce."""
    for _ in range(steps):
        prompts = rng.integers(0, 10, (64, 2))
        answers = target(prompts)
        previous = np.full(64, START)
        for position in range(MAX_TOKENS - 1):
            inputs = features(prompts, position, previous)
            hidden, logp = policy.forward(inputs)
            grad = (np.exp(logp) - np.eye(VOCAB)[answers[:, position]]) / len(prompts)
            policy.update(inputs, hidden, grad)
            previous = answers[:, position]


def grpo_step(policy: Policy, reference: Policy, rng: np.random.Generator) -> tuple[dict[str, object], int]:
    """Sample groups, compute group-relative advantages, update once; returns the metrics and the tokens written."""
    prompts = np.repeat(rng.integers(0, 10, (PROMPTS, 2)), GROUP, axis=0)
    rollouts = sample(policy, prompts, rng)
    groups = rollouts.rewards.reshape(PROMPTS, GROUP)
    spread = groups.std(axis=1, ddof=1)
    advantages = ((groups - groups.mean(axis=1, keepdims=True)) / (spread[:, None] + 1e-4)).reshape(-1)

    lengths = rollouts.mask.sum(axis=1)
    token_advantages = np.repeat(advantages, lengths)
    written = rollouts.tokens[rollouts.mask]
    hidden, logp = policy.forward(rollouts.inputs)
    _, logp_reference = reference.forward(rollouts.inputs)
    rows = np.arange(len(written))
    probabilities = np.exp(logp)
    drift = logp_reference[rows, written] - logp[rows, written]
    kl = np.exp(drift) - drift - 1  # k3: never negative, low variance
    loss = -token_advantages + BETA * kl  # on-policy: the ratio is 1
    push = -token_advantages + BETA * (1 - np.exp(drift))
    grad = push[:, None] * (np.eye(VOCAB)[written] - probabilities) / len(written)
    norm = policy.update(rollouts.inputs, hidden, grad)

    metrics: dict[str, object] = {
        "loss": values.mean(loss),
        "reward": values.mean(rollouts.rewards),
        "reward_std": values.spread(rollouts.rewards, sample=True),
        "frac_reward_zero_std": values.mean(np.isclose(spread, 0)),
        "kl": values.mean(kl),
        "entropy": values.mean(-(probabilities * logp).sum(axis=1)),
        "completions/mean_length": values.mean(lengths),
        "completions/clipped_ratio": values.mean(rollouts.tokens[:, -1] != EOS),
        "grad_norm": norm,
        "learning_rate": policy.learning_rate,
    }
    return metrics, int(lengths.sum())


def evaluate(policy: Policy, rng: np.random.Generator) -> dict[str, float]:
    """Greedy answers to all 100 sums."""
    prompts = np.array([(a, b) for a in range(10) for b in range(10)])
    rollouts = sample(policy, prompts, rng, greedy=True)
    return {"accuracy": float((rollouts.rewards == 1.0).mean()), "avg_reward": float(rollouts.rewards.mean())}


def train(run: Run, steps: int, learning_rate: float, seed: int) -> None:
    """Imitation, then GRPO, recorded and monitored."""
    rng = np.random.default_rng(seed)
    policy = Policy(rng)
    imitate(policy, rng)
    reference = Policy(rng)
    reference.weights = [weight.copy() for weight in policy.weights]
    policy.param_groups[0]["lr"] = learning_rate

    actions = rlvitals.Actions(run, policy)  # this example keeps no checkpoints, so it passes no `save` and `load`
    tokens = 0
    for step in range(1, steps + 1):
        metrics, written = grpo_step(policy, reference, rng)
        tokens += written
        run.log({**metrics, "num_tokens": tokens}, step=step)
        if step % 100 == 0 or step == 1:
            run.log_eval(evaluate(policy, rng), step=step)
        if actions.carry_out():
            print("stopping, as the doctor asks", flush=True)
            break


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO on a small policy in numpy, recorded with rlvitals.")
    parser.add_argument("output_dir")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    with rlvitals.start(
        options.output_dir,
        config={**vars(options), "num_generations": GROUP},
        algorithm="grpo",
        total_steps=options.steps,
        actions="act",
        display="plain",
        display_every=100,
        overwrite=True,
    ) as run:
        train(run, options.steps, options.learning_rate, options.seed)
    print(f"recorded in {options.output_dir}")


if __name__ == "__main__":
    main()
