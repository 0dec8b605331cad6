"""Ids of items: ObjectIds that sort as they were made, and that nobody else makes."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from bson import ObjectId

from mongoq.model.ids import Ids, new_id, new_ids


def test_they_are_object_ids_of_now_and_sort_as_they_were_made() -> None:
    made = [*map(ObjectId, new_ids(500)), new_id(), *map(ObjectId, new_ids(500)), new_id()]
    assert made == sorted(made)
    assert len(set(made)) == 1_002
    assert all(abs(id.generation_time.timestamp() - time.time()) < 60 for id in made)


def test_they_go_on_in_order_beyond_sixteen_million() -> None:
    ids = Ids()
    ids._numbers = count(2**24 - 2)  # an ObjectId counts with three bytes
    made = ids.many(5)
    assert made == sorted(set(made))
    assert {len(id) for id in made} == {12}


def test_no_two_producers_share_one() -> None:
    assert not {*Ids().many(1_000)} & {*Ids().many(1_000)}


def test_threads_share_none() -> None:
    with ThreadPoolExecutor(4) as threads:
        made = [id for ids in threads.map(new_ids, [7] * 2_000) for id in ids]
    assert len(set(made)) == 14_000


def test_a_forked_child_makes_others() -> None:
    read, write = os.pipe()
    before = new_ids(1)[0]
    child = os.fork()
    if child == 0:
        os.write(write, b"".join(new_ids(3)))
        os._exit(0)
    os.waitpid(child, 0)
    raw = os.read(read, 100)
    theirs = {raw[start : start + 12] for start in range(0, 36, 12)}
    assert len(theirs) == 3
    ours = int.from_bytes(before[4:])
    assert all(abs(int.from_bytes(id[4:]) - ours) > 1_000_000 for id in theirs)
