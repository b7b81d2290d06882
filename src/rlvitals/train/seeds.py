"""Random draws that depend only on their arguments, so that a resumed training draws the same as an unbroken one."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


def seeded(device: Any, *what: object) -> torch.Generator:
    """A generator for a seed and a purpose (such as step and rank)."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=7).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "big"))


def batch_places(step: int, batch: int, count: int, *seed: object) -> list[int]:
    """Which of `count` prompts a step (from 1) uses. All prompts are used once, in shuffled order, before any repeats.

    >>> sorted(batch_places(1, 2, 4, 0) + batch_places(2, 2, 4, 0))
    [0, 1, 2, 3]
    """
    decks: dict[int, list[int]] = {}
    places = []
    for index in range((step - 1) * batch, step * batch):
        deck = index // count
        if deck not in decks:
            decks[deck] = torch.randperm(count, generator=seeded("cpu", *seed, "deck", deck)).tolist()
        places.append(decks[deck][index % count])
    return places
