"""Token numbers from logits: compared with float64, with gradients, masks, temperature and broken rows."""

from __future__ import annotations

import math

import pytest
import torch

from compute.token_data import (
    check_broken_rows,
    check_gradients,
    check_hidden,
    check_numbers,
    make_logits,
    reference,
    worst,
)
from rlvitals.compute import tokens, tokens_plain

TYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("vocabulary", "temperature"), [(1003, 1.0), (257, 0.7), (64, 1.3), (1, 1.0)])
def test_the_numbers_are_those_of_float64(dtype, vocabulary, temperature):
    check_numbers("cpu", dtype, vocabulary, temperature)


def test_rows_are_taken_a_few_at_a_time_without_a_seam(monkeypatch):
    monkeypatch.setattr(tokens_plain, "CHUNK_ELEMENTS", 3 * 500)
    check_numbers("cpu", torch.float32, 500, 1.0)
    check_gradients("cpu", torch.float32, overwrite=False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_gradients_are_those_of_autograd_in_float64(overwrite):
    check_gradients("cpu", torch.float32, overwrite=overwrite)


def test_gradients_pass_the_check_by_differences():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(7, (2, 3))

    def both(logits):
        found = tokens.stats(logits, ids, temperature=0.8)
        return found.logprobs.double(), found.entropy.double()

    assert torch.autograd.gradcheck(both, logits, eps=1e-3, atol=2e-3, rtol=2e-3)


def test_hidden_states_give_what_their_logits_give():
    check_hidden("cpu", torch.float32)


def test_rows_that_have_no_distribution_are_reported():
    check_broken_rows("cpu")


def test_a_masked_row_may_hold_anything():
    logits, ids = make_logits(2, 4, 50, torch.float32, "cpu")
    mask = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1]])
    want = tokens.stats(logits, ids)
    logits[mask == 0] = math.nan
    found = tokens.stats(logits, ids, mask=mask)
    assert found.logprobs[0, 2] == found.entropy[1, 0] == 0.0
    assert torch.equal(found.logprobs[mask == 1], want.logprobs[mask == 1])
    assert not found.broken().any()


def test_no_rows_give_no_numbers():
    found = tokens.stats(torch.zeros(0, 5, 11), torch.zeros(0, 5, dtype=torch.long), top1=True)
    assert found.logprobs.shape == found.top1_prob.shape == (0, 5)


def test_the_exact_kl_is_zero_to_itself_and_infinite_to_what_cannot_happen():
    logits, ids = make_logits(1, 4, 40, torch.float32, "cpu")
    same = tokens.stats(logits, ids, other_logits=logits.clone())
    assert same.kl.max() < 1e-6
    other = logits.clone()
    other[0, 0, ids[0, 0]] = -math.inf
    found = tokens.stats(logits, ids, other_logits=other)
    assert found.kl[0, 0] == math.inf
    assert found.other_logprobs[0, 0] == -math.inf
    assert worst(found.kl[0, 1:], reference(logits, ids, 1.0, other)["kl"][0, 1:]) < 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": torch.zeros(2, 3, dtype=torch.long)}, "ids must be of shape"),
        ({"mask": torch.ones(3)}, "mask must be of shape"),
        ({"other_logits": torch.zeros(2, 4, 7)}, "other logits must be of shape"),
        ({"temperature": 0.0}, "temperature must be above 0"),
    ],
)
def test_what_does_not_fit_is_reported(change, message):
    given = {"logits": torch.zeros(2, 4, 8), "ids": torch.zeros(2, 4, dtype=torch.long)} | change
    with pytest.raises(ValueError, match=message):
        tokens.stats(**given)


def test_a_head_that_does_not_fit_is_reported():
    ids = torch.zeros(2, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="hidden states end in 8"):
        tokens.from_hidden(torch.zeros(2, 4, 8), torch.zeros(50, 9), ids)
    with pytest.raises(ValueError, match="at least one row"):
        tokens.from_hidden(torch.zeros(2, 4, 8), torch.zeros(50, 8), ids, chunk=0)
