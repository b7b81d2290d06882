"""Two ranks train a sharded model beside an unsharded copy; each rank raises at the first difference."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import fsdp_on_cpu
import torch

from rlvitals.train import checkpoint, sharded, tiny
from rlvitals.train.ppo.actor_critic import ActorCritic, parameter_groups
from rlvitals.train.sampling import Sampling, answered

MOST = 0.5  # the norms of the gradients are far above it
NEAR = {"rtol": 1e-5, "atol": 1e-6}  # sums of float32 in another order


def the_same(one, other):
    assert one.keys() == other.keys()
    for name, weight in one.items():
        torch.testing.assert_close(weight, other[name], **NEAR, msg=lambda text, name=name: f"{name}: {text}")


def optimizer_of(model):
    return torch.optim.AdamW(parameter_groups(model, 1e-2, 3e-2), betas=(0.9, 0.95), weight_decay=0.0)


def rows_of(rank, step):
    drawn = torch.Generator().manual_seed(10 * step + rank)
    ids = torch.randint(3, 12, (2, 7), generator=drawn)
    ones = torch.ones_like(ids)
    return answered(ids[:, :3], ones[:, :3], ids[:, 3:], ones[:, 3:])


def loss_of(model, rank, step):
    read = model("read", rows_of(rank, step), 1.0)
    return -(read.logprobs.mean() + (read.values - 1.0).square().mean())


def step_both(accelerator, sharded_one, whole_one, step):
    """The unsharded model reads the rows of both ranks."""
    (spread, spread_optimizer), (one, one_optimizer) = sharded_one, whole_one
    accelerator.backward(loss_of(spread, accelerator.process_index, step))
    torch.autograd.backward((loss_of(one, 0, step) + loss_of(one, 1, step)) / 2)
    norms, wanted = sharded.update(spread_optimizer, MOST), sharded.update(one_optimizer, MOST)
    assert all(norm > MOST for norm in wanted)
    torch.testing.assert_close(torch.stack(norms), torch.stack(wanted), **NEAR)


def sampled(model, prompts):
    return model("answers_to", [[5, 6, 7]] * prompts, Sampling(4, eos_id=1, pad_id=0, temperature=0.0))[1].tokens


def main(folder):
    accelerator = sharded.accelerator(is_bf16=False)
    assert accelerator.is_fsdp2
    assert accelerator.num_processes == 2
    model, tokenizer = tiny.build(["a b c d e f g h"], width=16, layers=2, heads=2)
    one = ActorCritic(model, is_separate=True)
    spread, one_optimizer = copy.deepcopy(one), optimizer_of(one)
    spread, spread_optimizer = accelerator.prepare(spread, optimizer_of(spread))
    assert sum(weight.to_local().numel() for weight in spread.parameters()) < 0.6 * sum(
        weight.numel() for weight in one.parameters()
    )
    both = (accelerator, (spread, spread_optimizer), (one, one_optimizer))

    # Ranks that sample different numbers of times, before the first step and between steps.
    for step in (1, 2):
        with sharded.whole(spread, accelerator), torch.no_grad():
            for prompts in range(1, 2 + 3 * accelerator.process_index):
                assert torch.equal(sampled(spread, prompts), sampled(one, prompts))
        step_both(*both, step)

    gathered = sharded.weights_of(spread)
    the_same(gathered, one.state_dict())
    assert gathered["policy.lm_head.weight"].data_ptr() == gathered["policy.model.embed_tokens.weight"].data_ptr()

    # A checkpoint of all ranks equals the one that a single process would write, and can be restored in place.
    extra = {"critic": spread.critic_state()}
    place = checkpoint.save(folder, 2, model=spread.policy, tokenizer=tokenizer, optimizer=spread_optimizer,
                            extra=extra, keep_last=None)  # fmt: skip
    then = copy.deepcopy(one.state_dict())
    moments = copy.deepcopy(one_optimizer.state_dict())
    step_both(*both, 3)
    spread_optimizer.param_groups[0]["lr"] = 7e-3
    for each, optimizer in both[1:]:
        kept = checkpoint.revert(place, model=each.policy, optimizer=optimizer)
        sharded.put_weights(each, kept["critic"])
    the_same(sharded.weights_of(spread), then)
    the_same(one.state_dict(), then)
    for found in (sharded.gathered(spread_optimizer.state_dict()), one_optimizer.state_dict()):
        for owner, state in moments["state"].items():
            the_same(found["state"][owner], state)
    assert [group["lr"] for group in spread_optimizer.param_groups] == [7e-3, 3e-2]
    spread_optimizer.param_groups[0]["lr"] = 1e-2
    step_both(*both, 4)
    the_same(sharded.weights_of(spread), one.state_dict())

    # A model without an optimizer, with its layers and its other weights sharded over both ranks.
    reference = sharded.to_read(copy.deepcopy(model), accelerator)
    ids = rows_of(0, 5).ids
    torch.testing.assert_close(reference(ids).logits, model(ids).logits.detach(), **NEAR)


if __name__ == "__main__":
    fsdp_on_cpu.switch_on()
    main(Path(sys.argv[1]))
