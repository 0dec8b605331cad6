"""Outcomes as values: what they say cannot be changed, and goes as it is to another process."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from mongoq import Move


def test_a_move_says_all_that_it_was_told() -> None:
    told = {"payload": {"n": 1}, "patch": None, "delay": 2, "when": None, "priority": 3, "headers": {"a": "b"}}
    move = Move("b", **told)
    assert {each.name: getattr(move, each.name) for each in fields(Move)} == {"to": "b"} | told
    assert replace(move, to="c") == Move("c", **told) != move


def test_a_move_goes_as_it_is_to_another_process() -> None:
    move = Move("b", delay=2)
    assert pickle.loads(pickle.dumps(move)) == move
    assert hash(move) == hash(Move("b", delay=2))


@pytest.mark.parametrize("name", ["to", "payload", "anything"])
def test_nobody_can_change_a_move(name: str) -> None:
    move = Move("b")
    with pytest.raises(FrozenInstanceError):
        setattr(move, name, "c")
    assert move == Move("b")
