"""One update of the weights: clipped, and skipped if a gradient is not a number."""

from __future__ import annotations

import pytest
import torch

from rlvitals.train import sharded


def two_groups():
    weights = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    return weights, torch.optim.SGD([{"params": [weights[0]], "lr": 1.0}, {"params": [weights[1]], "lr": 0.5}])


def test_each_group_is_scaled_to_the_norm_where_it_is_above_it():
    (first, second), optimizer = two_groups()
    first.grad, second.grad = torch.tensor([3.0, 4.0, 0.0]), torch.tensor([0.3, 0.4])
    assert [float(norm) for norm in sharded.update(optimizer, 1.0)] == pytest.approx([5.0, 0.5])
    assert first.tolist() == pytest.approx([1 - 0.6, 1 - 0.8, 1.0], abs=1e-5)
    assert second.tolist() == pytest.approx([1 - 0.15, 1 - 0.2])
    assert first.grad is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_changes_nothing_and_is_returned(bad):
    (first, second), optimizer = two_groups()
    first.grad, second.grad = torch.ones(3), torch.tensor([0.1, bad])
    norms = sharded.update(optimizer, 1.0)
    assert norms[0].isfinite()
    assert not norms[1].isfinite()
    assert [first.tolist(), second.tolist()] == [[1.0] * 3, [1.0] * 2]
    assert first.grad is None  # the next update starts from zero
    first.grad, second.grad = torch.ones(3) * 0.1, torch.ones(2) * 0.1
    sharded.update(optimizer, 1.0)
    assert first.tolist() == pytest.approx([0.9] * 3)


def test_the_trainers_keep_torch_from_cudnns_attention():
    torch.backends.cuda.enable_cudnn_sdp(True)
    sharded.accelerator(is_bf16=False)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
