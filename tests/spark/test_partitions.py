"""Reads are split into parts of equal size, which show each item once, and are handed over in small batches."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from bson import ObjectId

STRANGE = [-1, 2**40, 0.5, "text", b"x", {"a": 1}, True, ObjectId("0" * 24), ObjectId("f" * 24)]


@pytest.fixture
def by_id(reader: Any) -> Callable[..., Any]:
    """Make a reader of ids only."""
    return lambda **options: reader("_id string", **options)


def ids_of(source: Any, partition: Any) -> list[str]:
    return [each for batch in source.read(partition) for each in batch.column("_id").to_pylist()]


@pytest.mark.parametrize("view", ["live", "history", "all"])
def test_partitions_are_equal_and_cover_everything_once(store: Any, by_id: Any, view: str) -> None:
    expected: list[Any] = []
    for _ in range(10):
        store.add_many(90, queue="other")
        if view != "history":
            expected += store.add_many(100)
        if view != "live":
            expected += store.add_many(100, when=None, processed=store.now)
    source = by_id(view=view, partitions=7)
    parts = [ids_of(source, partition) for partition in source.partitions()]
    assert sorted(chain(*parts)) == sorted(map(str, expected))
    assert len(parts) == 7
    assert max(map(len, parts)) <= 1.1 * len(expected) / 7


def test_every_id_of_every_type_is_in_one_part(store: Any, by_id: Any) -> None:
    store.collection.insert_many([{"_id": each, "q": "orders", "when": store.now} for each in STRANGE])
    store.add_many(100)
    source = by_id(partitions=5)
    parts = [ids_of(source, partition) for partition in source.partitions()]
    assert (len(parts), len(set(chain(*parts)))) == (5, 109)


def test_few_items_are_one_part_and_no_part_is_made_in_vain(store: Any, by_id: Any) -> None:
    assert len(by_id(missing="empty").partitions()) == 1
    store.add_many(3)
    assert len(by_id().partitions()) == 1
    assert len(by_id(partitions=50).partitions()) <= 3


def test_a_commit_during_the_read_shows_an_item_once(store: Any, by_id: Any) -> None:
    ids = store.add_many(600)
    source = by_id(view="all", partitions=3)
    first, *others = source.partitions()
    read = ids_of(source, first)
    store.collection.update_many({}, {"$set": {"processed": store.now}, "$unset": {"when": 1}})
    read += [id for partition in others for id in ids_of(source, partition)]
    assert sorted(read) == sorted(map(str, ids))


def test_batches_are_bounded_by_rows_and_by_bytes(store: Any, by_id: Any, reader: Any) -> None:
    for _ in range(4):
        store.add_many(5_000)
    source = by_id(partitions=1)
    sizes = [batch.num_rows for batch in source.read(source.partitions()[0])]
    assert sum(sizes) == 20_000
    assert max(sizes) <= 10_000
    for size in [1_000_000] * 12 + [15_000_000]:
        store.add({"blob": "x" * size}, queue="large")
    source = reader(queue="large")
    batches = [batch.nbytes for batch in source.read(source.partitions()[0])]
    assert sum(batches) > 27_000_000
    assert sorted(batches)[-2] < 5_000_000
    assert max(batches) < 17_000_000  # one item is more than a batch should hold


def test_a_partition_travels_with_all_it_needs_and_shows_no_password(store: Any, by_id: Any) -> None:
    ids = store.add_many(100)
    partitions = pickle.loads(pickle.dumps(by_id(partitions=4).partitions()))
    elsewhere = by_id(queue="another", view="history", mode="permissive")
    assert sorted(id for each in partitions for id in ids_of(elsewhere, each)) == sorted(map(str, ids))
    assert store.uri not in repr(partitions) + repr(elsewhere)
