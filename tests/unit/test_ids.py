"""Ids that are made many at a time."""

from __future__ import annotations

import time

import pytest
from bson import ObjectId

from mongoq.model.ids import NUMBERS, Ids


def test_they_are_object_ids_of_now_and_sort_as_they_were_made() -> None:
    ids = Ids()
    made = [ObjectId(raw) for raw in [*ids.made(500), *ids.made(1), *ids.made(500)]]
    assert made == sorted(made)
    assert len(set(made)) == 1_001
    assert all(abs(id.generation_time.timestamp() - time.time()) < 60 for id in made)


def test_no_two_producers_share_one() -> None:
    assert not {*Ids().made(1_000)} & {*Ids().made(1_000)}


def test_they_begin_again_before_their_numbers_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, now = Ids(), time.time()
    first = ids.made(3)
    ids._next = NUMBERS - 2
    monkeypatch.setattr(time, "time", lambda: now + 1)
    made = ids.made(3)
    assert made == sorted(made)
    assert {raw[9:] for raw in made} == {raw[9:] for raw in first}
    assert not {*made} & {*first}
