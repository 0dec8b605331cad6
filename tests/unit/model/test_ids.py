"""Ids of items made many at a time: the driver's own, in order, and each once."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest
from bson import ObjectId

from mongoq.model.encoding import ids
from mongoq.model.encoding.ids import COUNTER_VALUES, bytes_of, new_id, new_ids


def many(number: int) -> list[ObjectId]:
    return list(map(ObjectId, new_ids(number)))


def test_they_are_those_of_the_driver_and_sort_as_they_were_made() -> None:
    made = [*many(500), ObjectId(), new_id(), new_id(), *many(1), ObjectId(), *many(500), new_id()]
    assert made == sorted(set(made))
    assert len({id.binary[4:9] for id in made}) == 1
    assert all(abs(id.generation_time.timestamp() - time.time()) < 60 for id in made)
    assert new_ids(0) == []


@pytest.mark.parametrize("left", [0, 1, 2, 5])
def test_they_are_in_order_when_the_driver_begins_to_count_again(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    monkeypatch.setattr(ObjectId, "_inc", COUNTER_VALUES - left)
    made = [*new_ids(5), *new_ids(2), new_id().binary, ObjectId().binary]
    assert len(set(made)) == 9
    assert made[:5] == sorted(made[:5])
    assert 0 <= ObjectId._inc < COUNTER_VALUES


def test_their_bytes_are_those_of_the_driver() -> None:
    id = ObjectId()
    assert bytes_of(id) == id.binary


def test_threads_share_none() -> None:
    with ThreadPoolExecutor(4) as threads:
        all_ids = [*chain.from_iterable(threads.map(new_ids, [7] * 2_000))]
    assert len(set(all_ids)) == 14_000


def test_a_forked_child_makes_others() -> None:
    read, write = os.pipe()
    ours = new_id().binary
    child = os.fork()
    if child == 0:
        os.write(write, b"".join([*new_ids(3), new_id().binary]))
        os._exit(0)
    os.waitpid(child, 0)
    raw = os.read(read, 100)
    theirs = {raw[start : start + 12] for start in range(0, 48, 12)}
    assert len(theirs) == 4
    assert len({id[4:9] for id in theirs}) == 1
    assert ours[4:9] not in {id[4:9] for id in theirs}


def test_a_forked_child_knows_its_own_bytes_before_it_has_a_second_thread() -> None:
    read, write = os.pipe()
    new_id()
    child = os.fork()
    if child == 0:
        os.write(write, b"%d" % ids._process.cache_info().currsize)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"1"


def test_a_driver_that_counts_otherwise_makes_them_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(ObjectId):
        __slots__ = ()

        @classmethod
        def _random(cls) -> bytes:
            raise AttributeError("_random")

    monkeypatch.setattr(ids, "ObjectId", Other)
    ids._process.cache_clear()
    made = [*new_ids(50), new_id().binary]
    assert made == sorted(set(made))
    assert {len(id) for id in made} == {12}
