"""Host memory for results is reused only when nothing reads it any more."""

from __future__ import annotations

import torch

from rlvitals.compute.host_memory import LOOKED_AT, HostPlaces

CPU = torch.device("cpu")


class Reader:
    """An object that waits for numbers."""


def test_a_place_is_used_again_when_its_reader_is_gone():
    landing = HostPlaces(3)
    place, reader = landing.take(CPU), Reader()
    landing.expect(place, CPU, reader)
    assert landing.take(CPU) is not place
    del reader
    assert landing.take(CPU) is place


def test_a_place_that_was_taken_is_nobody_elses():
    landing = HostPlaces(3)
    landing.expect(first := landing.take(CPU), CPU, Reader())
    assert landing.take(CPU) is first
    assert landing.take(CPU) is not first


def test_readers_who_stay_do_not_make_every_further_call_take_new_memory():
    landing = HostPlaces(3)
    stay = [Reader() for _ in range(LOOKED_AT - 1)]
    for reader in stay:
        landing.expect(landing.take(CPU), CPU, reader)
    seen = set()
    for _ in range(50):
        place, reader = landing.take(CPU), Reader()
        landing.expect(place, CPU, reader)
        seen.add(place.address)
    assert len(seen) <= LOOKED_AT


def test_a_kept_place_is_given_to_nobody():
    landing = HostPlaces(3)
    kept = landing.keep(CPU)
    assert all(landing.take(CPU) is not kept for _ in range(5))
