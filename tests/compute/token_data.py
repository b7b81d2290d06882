"""Logits, their token numbers in float64, and the checks that the CPU and the GPU share."""

from __future__ import annotations

import math

import torch

from rlvitals.compute import tokens

TOLERANCE = 5e-6


def make_logits(rows, length, vocabulary, dtype, device, *, seed=0):
    """Distributions from nearly certain to nearly uniform; the chosen token is mostly a likely one."""
    draw = torch.Generator(device=device).manual_seed(seed)
    logits = torch.randn(rows, length, vocabulary, generator=draw, device=device) * 2
    ids = torch.randint(vocabulary, (rows, length), generator=draw, device=device)
    peaks = torch.rand(rows, length, 1, generator=draw, device=device) * 25
    return logits.scatter_add_(2, ids.unsqueeze(2), peaks).to(dtype), ids


def reference(logits, ids, temperature=1.0, other=None):
    """The token numbers computed from the definitions in float64."""
    logp = (logits.double() / temperature).log_softmax(-1)
    p = logp.exp()
    nothing = torch.zeros_like(p)
    found = {
        "logprobs": logp.gather(-1, ids.unsqueeze(-1)).squeeze(-1),
        "entropy": -torch.where(p > 0, p * logp, nothing).sum(-1),
        "logsumexp": (logits.double() / temperature).logsumexp(-1),
        "top1_prob": p.amax(-1),
        "top1_match": (logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) == logits.amax(-1)).double(),
    }
    if other is not None:
        other_logp = (other.double() / temperature).log_softmax(-1)
        found["kl"] = torch.where(p > 0, p * (logp - other_logp), nothing).sum(-1)
        found["other_logprobs"] = other_logp.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return found


def worst(got, want):
    """The largest error, relative to the number or to 1, whichever is larger. A NaN is an infinite error."""
    gap = (got.double() - want.double()).abs() / want.double().abs().clamp(min=1)
    return gap.nan_to_num(nan=math.inf).max().item()


def check_numbers(device, dtype, vocabulary, temperature, *, rows=2, length=5):
    logits, ids = make_logits(rows, length, vocabulary, dtype, device, seed=vocabulary)
    other = (logits.float() + 0.3 * torch.randn(logits.shape, device=device)).to(dtype)
    want = reference(logits, ids, temperature, other)
    alone = tokens.stats(logits, ids, temperature=temperature, top1=True)
    beside = tokens.stats(logits, ids, temperature=temperature, top1=True, other_logits=other)
    wide = torch.zeros(rows, length, vocabulary + 13, dtype=dtype, device=device)
    wide[..., :vocabulary] = logits
    strided = tokens.stats(wide[..., :vocabulary], ids, temperature=temperature)
    errors = {}
    for name, numbers in want.items():
        for found in (alone, beside, strided):
            got = getattr(found, name)
            if got is not None:
                errors[name] = max(errors.get(name, 0.0), worst(got, numbers))
    assert max(errors.values()) < TOLERANCE, errors
    assert (alone.entropy >= 0).all()
    assert (alone.logprobs <= 0).all()
    return errors


def check_gradients(device, dtype, *, overwrite, vocabulary=300, tolerance=TOLERANCE, seed=0):
    logits, ids = make_logits(2, 6, vocabulary, dtype, device, seed=seed)
    draw = torch.Generator(device=device).manual_seed(seed + 1)
    mask = torch.rand(2, 6, generator=draw, device=device) > 0.3
    ups = torch.randn(2, 2, 6, generator=draw, device=device)
    exact = logits.double().requires_grad_()
    logp = (exact / 0.7).log_softmax(-1)
    chosen = logp.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    ((chosen * ups[0] + entropy * ups[1]) * mask).sum().backward()
    given = logits.clone().requires_grad_()
    # Pass a copy: overwriting it must not change the caller's tensor.
    found = tokens.stats(given * 1, ids, mask=mask, temperature=0.7, overwrite_logits=overwrite)
    (found.logprobs * ups[0] + found.entropy * ups[1]).sum().backward()
    assert worst(given.grad, exact.grad) < tolerance
    assert (given.grad[~mask] == 0).all()
    only = logits.clone().requires_grad_()
    tokens.stats(only, ids, mask=mask, temperature=0.7).logprobs.sum().backward()
    assert only.grad.abs().sum() > 0


def check_hidden(device, dtype, tolerance=1e-5):
    torch.manual_seed(1)
    hidden = torch.randn(2, 7, 24, device=device).to(dtype)
    weight, bias = torch.randn(97, 24, device=device).to(dtype), torch.randn(97, device=device).to(dtype)
    ids = torch.randint(97, (2, 7), device=device)
    mask = torch.rand(2, 7, device=device) > 0.2
    ups = torch.randn(2, 2, 7, device=device)

    def run(by_chunks):
        leaves = [part.clone().requires_grad_() for part in (hidden, weight, bias)]
        if by_chunks:
            found = tokens.from_hidden(leaves[0], leaves[1], ids, bias=leaves[2], mask=mask, chunk=4, top1=True)
        else:
            logits = leaves[0] @ leaves[1].T + leaves[2]
            found = tokens.stats(logits, ids, mask=mask, top1=True)
        (found.logprobs * ups[0] + found.entropy * ups[1]).sum().backward()
        return found, [leaf.grad for leaf in leaves]

    (chunked, chunked_grads), (whole, whole_grads) = run(True), run(False)
    for name in ("logprobs", "entropy", "logsumexp", "top1_prob", "top1_match"):
        assert worst(getattr(chunked, name), getattr(whole, name)) < tolerance, name
    for got, want in zip(chunked_grads, whole_grads, strict=True):
        assert worst(got, want) < tolerance


def check_broken_rows(device):
    logits, ids = make_logits(1, 6, 300, torch.float32, device)
    logits[0, 0, 7] = math.nan
    logits[0, 1, 9] = math.inf
    logits[0, 2] = -math.inf
    logits[0, 3, 10:] = -math.inf  # forbidden tokens are valid
    logits[0, 4] = -math.inf
    logits[0, 4, 5] = 3.0  # certainty is valid too
    ids[0, 3], ids[0, 4] = 3, 5
    found = tokens.stats(logits, ids, top1=True)
    assert found.broken().tolist() == [[True, True, True, False, False, False]]
    for numbers in (found.logprobs, found.entropy, found.top1_prob, found.top1_match):
        assert numbers.isnan().tolist() == [[True, True, True, False, False, False]]
    want = reference(logits[:, 3:], ids[:, 3:])
    for name, numbers in want.items():
        assert worst(getattr(found, name)[:, 3:], numbers) < TOLERANCE, name
    ids[0, 3], ids[0, 4], ids[0, 5] = 20, 6, 300
    found = tokens.stats(logits, ids)
    assert found.logprobs[0, 3:5].tolist() == [-math.inf, -math.inf]
    assert found.logprobs[0, 5].isnan()  # no such token
