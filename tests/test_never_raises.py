"""Exceptions that must not reach a training loop are caught, and those that must pass are raised."""

from __future__ import annotations

import pytest

from rlvitals.guard import Once, guarded, value_or, words_of


def test_an_exception_ends_the_block_and_is_handed_over():
    met = []
    with guarded(met.append):
        raise ValueError("once")
    assert [str(error) for error in met] == ["once"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_of_a_program_passes(kind):
    with pytest.raises(kind), guarded():
        raise kind


def test_exceptions_that_are_named_pass():
    with pytest.raises(ValueError, match="strict"), guarded(but=(ValueError,)):
        raise ValueError("strict")


def test_a_handler_that_raises_is_contained():
    met = []

    def fail(error):
        met.append(str(error))
        raise RuntimeError("the handler")

    with guarded(fail):
        raise ValueError("the block")
    assert met == ["the block"]


def test_a_value_that_raises_has_its_default_and_its_error():
    met = []
    assert value_or(3, int, "x", handle=met.append) == 3
    assert isinstance(met[0], ValueError)


def test_an_error_that_cannot_be_printed_is_described_by_its_name():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert words_of(Mute()) == "Mute"


def test_a_message_is_logged_once(caplog):
    warn_once = Once()
    assert warn_once("100% full", key="disk")
    assert not warn_once("still full", key="disk")
    assert caplog.messages == ["100% full"]
