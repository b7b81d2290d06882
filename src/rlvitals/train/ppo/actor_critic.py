"""A policy with a value for each token: any causal language model, and one linear head over its last hidden state.

The head reads the policy's own hidden states (shared), or those of a critic that began as a copy of it (separate). All
work goes through `forward`, also sampling: a model that accelerate has wrapped must be entered there.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlvitals.train import sharded
from rlvitals.train.ppo import reward_model
from rlvitals.train.sampling import Answered, Sampled, model_inputs, of_answers, sample


class Read(NamedTuple):
    """What the model makes of answers, all [rows, answer tokens]."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor
    """Of the state before each token."""


class ActorCritic(nn.Module):
    """`policy` is what is trained and sampled from; `critic` is None where both share one body."""

    def __init__(self, policy: Any, *, is_separate: bool) -> None:
        super().__init__()
        self.policy = policy
        self.critic = copy.deepcopy(policy.base_model) if is_separate else None
        self.value_head = nn.Linear(policy.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)  # nothing is known yet: every state is worth 0
        nn.init.zeros_(self.value_head.bias)
        self._no_split_modules = policy._no_split_modules  # FSDP asks which layers belong together

    def forward(self, what: str, *arguments: Any, **further: Any) -> Any:
        """Call one of the methods below by its name."""
        return getattr(self, what)(*arguments, **further)

    def sample(self, ids: Tensor, mask: Tensor, **how: Any) -> Sampled:
        """Answers to left-padded prompts; see `sampling.sample`."""
        return sample(self.policy, ids, mask, **how)

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
        """The values alone, from the hidden states `read_policy` gave or from the critic."""
        if self.critic is not None:
            hidden = self.critic(**model_inputs(self.critic, rows)).last_hidden_state
        before = hidden[:, -(rows.width + 1) : -1]
        values: Tensor = self.value_head(before.to(self.value_head.weight.dtype))[..., 0]
        return values.float()

    @torch.no_grad()
    def begin_values(self, model: Any) -> None:
        """Take the values of a model with one label and a body like the policy's, such as a reward model: what it
        thinks of the whole is what it begins with at every token.
        """
        assert self.critic is not None
        mean, deviation = reward_model.calibration(model)
        self.critic.load_state_dict(model.base_model.state_dict())
        self.value_head.weight.copy_(model.score.weight / deviation)
        self.value_head.bias.fill_(-mean / deviation)

    @torch.no_grad()
    def put_values(self, model: Any) -> None:
        """Write the values into such a model: `begin_values` takes them back."""
        assert self.critic is not None
        model.base_model.load_state_dict(self.critic.state_dict())
        model.score.weight.copy_(self.value_head.weight)
        reward_model.set_calibration(model, mean=-float(self.value_head.bias), deviation=1.0)

    def critic_state(self) -> dict[str, Tensor]:
        """The weights that are not the policy's; of sharded ones this rank's parts."""
        return {name: weight for name, weight in self.state_dict().items() if not name.startswith("policy.")}

    def load_critic_state(self, state: dict[str, Tensor]) -> None:
        """Put them back, whole."""
        sharded.put_weights(self, state)


def parameter_groups(model: ActorCritic, learning_rate: float, value_learning_rate: float) -> list[dict[str, Any]]:
    """The policy's parameters first, then those of the values alone; each with its own learning rate."""
    of_policy = [weight for weight in model.policy.parameters() if weight.requires_grad]
    others = [weight for name, weight in model.named_parameters() if not name.startswith("policy.")]
    return [{"params": of_policy, "lr": learning_rate}, {"params": others, "lr": value_learning_rate}]
