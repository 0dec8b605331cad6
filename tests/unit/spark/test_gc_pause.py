"""The collector of cycles rests while rows are made, and works for everybody else."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from mongoq.spark.clients import pause_gc, pause_while_making


def test_it_rests_while_a_value_is_made_and_works_for_who_takes_it() -> None:
    def made() -> Iterator[bool]:
        yield gc.isenabled()
        yield gc.isenabled()

    states = [(inside, gc.isenabled()) for inside in pause_while_making(made())]
    assert states == [(False, True), (False, True)]
    assert gc.isenabled()


def test_it_works_again_after_an_error() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    values = pause_while_making(failing())
    assert next(values) == 1
    with pytest.raises(ValueError, match="no more"):
        next(values)
    assert gc.isenabled()


def test_where_it_rests_already_it_is_left_so() -> None:
    gc.disable()
    try:
        with pause_gc():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
