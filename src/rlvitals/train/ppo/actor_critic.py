"""A policy with a value for each token: any causal language model, and one linear head over its last hidden state.

The head reads the policy's own hidden states (shared), or those of a critic that starts as a copy of it (separate). All
calls go through `forward`, including sampling, because a model that accelerate has wrapped must be called there.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlvitals.compute import advantage
from rlvitals.train import losses
from rlvitals.train.ppo import reward_model
from rlvitals.train.ppo.experience import token_rewards
from rlvitals.train.ppo.settings import PPOSettings
from rlvitals.train.sampling import Answered, Sampled, Sampling, answers_to, model_inputs, of_answers
from rlvitals.train.schedule import rise_and_fall
from rlvitals.train.supervised import TrainingCourse


class Read(NamedTuple):
    """What the model computes for answers. All tensors are [rows, answer tokens]."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor
    """The value of the state before each token."""


class ActorCritic(nn.Module):
    """`policy` is trained and sampled from. `critic` is None if both share one body."""

    def __init__(self, policy: Any, *, is_separate: bool) -> None:
        super().__init__()
        self.policy = policy
        self.critic = copy.deepcopy(policy.base_model) if is_separate else None
        self.value_head = nn.Linear(policy.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)  # every state has the initial value 0
        nn.init.zeros_(self.value_head.bias)
        self._no_split_modules = policy._no_split_modules  # FSDP reads which layers must not be split

    def forward(self, what: str, *arguments: Any, **further: Any) -> Any:
        """Call one of the methods below by name."""
        return getattr(self, what)(*arguments, **further)

    def answers_to(
        self, prompts: list[list[int]], how: Sampling, generator: torch.Generator | None = None
    ) -> tuple[Answered, Sampled]:
        """As `sampling.answers_to`."""
        return answers_to(self.policy, prompts, how, generator)

    def read(self, rows: Answered, temperature: float) -> Read:
        """Log-probs, entropies and values of the answers."""
        logprobs, entropy, hidden = self.read_policy(rows, temperature)
        return Read(logprobs, entropy, self.read_values(rows, hidden))

    def read_policy(self, rows: Answered, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs and entropies of the answers, and the hidden states a shared head reads."""
        inputs = model_inputs(self.policy, rows, keep_logits=rows.width + 1)
        output = self.policy(**inputs, output_hidden_states=self.critic is None)
        stats = of_answers(output.logits, rows, temperature=temperature)
        hidden = output.hidden_states[-1] if self.critic is None else output.logits.new_empty(0)
        return stats.logprobs, stats.entropy, hidden

    def read_values(self, rows: Answered, hidden: Tensor) -> Tensor:
        """The values alone, from the hidden states of `read_policy` or from the critic."""
        if self.critic is not None:
            hidden = self.critic(**model_inputs(self.critic, rows)).last_hidden_state
        before = hidden[:, -(rows.width + 1) : -1]
        values: Tensor = self.value_head(before.to(self.value_head.weight.dtype))[..., 0]
        return values.float()

    @torch.no_grad()
    def begin_values(self, model: Any) -> None:
        """Initialise the critic from a model with one label and a body like the policy's, such as a reward model. The
        initial value at every token is the calibrated output of its head.
        """
        assert self.critic is not None
        mean, deviation = reward_model.calibration(model)
        self.critic.load_state_dict(model.base_model.state_dict())
        self.value_head.weight.copy_(model.score.weight / deviation)
        self.value_head.bias.fill_(-mean / deviation)

    @torch.no_grad()
    def put_values(self, model: Any) -> None:
        """Write the critic and its head into such a model, which `begin_values` can read."""
        assert self.critic is not None
        model.base_model.load_state_dict(self.critic.state_dict())
        model.score.weight.copy_(self.value_head.weight)
        reward_model.set_calibration(model, mean=-float(self.value_head.bias), deviation=1.0)

    def critic_state(self) -> dict[str, Tensor]:
        """The weights that do not belong to the policy. For sharded weights, this rank's parts."""
        return {name: weight for name, weight in self.state_dict().items() if not name.startswith("policy.")}


def parameter_groups(model: ActorCritic, learning_rate: float, value_learning_rate: float) -> list[dict[str, Any]]:
    """The policy's parameters, then those of the critic and its head, each with its own learning rate."""
    of_policy = [weight for weight in model.policy.parameters() if weight.requires_grad]
    others = [weight for name, weight in model.named_parameters() if not name.startswith("policy.")]
    return [{"params": of_policy, "lr": learning_rate}, {"params": others, "lr": value_learning_rate}]


# Before PPO the critic learns the returns of the initial policy's answers at each token. Otherwise the values are noise
# when PPO begins, and so are the advantages that are computed from them.


class AnswerReturns(NamedTuple):
    """A batch of answers and the return at each of their tokens."""

    rows: Answered
    mask: Tensor
    returns: Tensor


def returns_of(rows: Answered, sampled: Sampled, scores: Tensor, settings: PPOSettings) -> AnswerReturns:
    """The returns of answers of the reference, whose KL to itself is 0. Answers without a score are masked."""
    mask = sampled.mask.float() * (~scores.isnan())[:, None]
    rewards = token_rewards(settings, scores.nan_to_num(), sampled.finished, torch.zeros_like(mask), mask)
    return AnswerReturns(rows, mask, advantage.discounted_returns(rewards, mask, gamma=settings.gamma).float())


def learn_values(model: ActorCritic, batches: Sequence[AnswerReturns], course: TrainingCourse) -> None:
    """Train the separate critic and its head with AdamW, one of these batches per step. The learning rate rises for a
    short time and then falls to a tenth. The policy does not change.
    """

    def loss_of(places: list[int]) -> Tensor:
        rows, mask, returns = batches[places[0]]
        missed, _ = advantage.value_losses(model.read_values(rows, returns), returns)
        return losses.summed(missed, mask) / mask.sum().clamp(min=1.0)

    of_critic = parameter_groups(model, 0.0, 0.0)[1]["params"]
    course.train(model, len(batches), loss_of, rise_and_fall(course.steps, 20), weights=of_critic)
