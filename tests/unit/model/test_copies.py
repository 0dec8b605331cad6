"""Copies that a replay makes: their ids, their bytes, and their order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId
from hypothesis import example, given
from hypothesis import strategies as st

from mongoq.model.copies import COPY_MARK, CopyIds, CopyStencil, ReplayOrder
from mongoq.model.encoding.codec import Encoding, codec_options
from mongoq.model.envelope import new_envelope

NOW = datetime(2024, 1, 1, tzinfo=UTC)
ID = ObjectId("65920080aaaaaaaaaaaaaaaa")
TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


def original(id: ObjectId = ID, processed: datetime = NOW) -> dict[str, Any]:
    return {"_id": id, "processed": processed}


def copy_id(original: dict[str, Any], to: str, label: str) -> ObjectId:
    return CopyIds(to, label).of(original)


def test_the_id_of_a_copy_is_always_the_same() -> None:
    """It is stored: another id for the same copy would push it again."""
    assert copy_id(original(), "orders", "") == ObjectId("c251f400aaaa686f8a8e687e")
    assert copy_id(original(), "orders", "") == copy_id(original(), "orders", "")


def test_the_id_of_a_copy_tells_apart_items_runs_queues_and_labels() -> None:
    documents = [original(), original(ObjectId()), original(processed=NOW + timedelta(milliseconds=1))]
    ids = {copy_id(document, to, label) for document in documents for to in ("a", "b") for label in ("", "x")}
    assert len(ids) == 12
    assert copy_id(original(), "a", "\ud800") != copy_id(original(), "a", "")


def test_ids_of_copies_ascend_with_the_time_of_processing() -> None:
    times = [NOW + timedelta(milliseconds=n) for n in range(1000)]
    ids = [copy_id(original(ObjectId(), time), "orders", "") for time in times]
    assert ids == sorted(ids)


@example(names=("orders", ""), payloads=[{"": 0, "_id": 0}], priority=0, attempts=0, whens=[NOW] * 3)
@given(
    names=st.tuples(TEXTS, TEXTS),
    payloads=st.lists(st.dictionaries(TEXTS, st.integers(-9, 9)), min_size=1),
    priority=st.integers(-100, 100),
    attempts=st.integers(0, 2**40),
    whens=st.lists(st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)), min_size=3, max_size=3),
)
def test_a_stencil_makes_the_very_bytes(
    names: tuple[str, str], payloads: list[Any], priority: int, attempts: int, whens: list[datetime]
) -> None:
    (queue, label), encoding = names, Encoding(codec_options())

    def envelope(payload: Any, id: ObjectId, original: ObjectId, when: datetime) -> dict[str, Any]:
        made = new_envelope(queue, payload, id=id, when=when, priority=priority, headers=None, once=whens[1])
        origin = {"queue": "orders", "id": original, "reason": label, "attempts": attempts, "key": None, "at": whens[2]}
        return {**made, "origin": origin, COPY_MARK: "orders"}

    def stored(payload: Any) -> bytes:
        # Of a whole document the driver writes _id first, of a document within one it does not.
        before = len(b"size\x03payload\0")
        return encoding.raw({"payload": payload}).raw[before:-1]

    stencil = CopyStencil(encoding, envelope(payloads[0], ObjectId(), ObjectId(), whens[2]))
    for payload in payloads:
        id, original = ObjectId(), ObjectId()
        copy = stencil.copy(id.binary, stored(payload), original.binary, whens[0])
        assert copy.raw == encoding.raw(envelope(payload, id, original, whens[0])).raw


def test_copies_stand_in_the_order_of_their_originals_whatever_their_ids() -> None:
    line = ReplayOrder()
    ids = [ObjectId() for _ in range(50)]
    shuffled = [id.binary for id in (*ids[::-1], *ids[10:40], ids[0])]
    stands: list[Any] = []
    for start in range(0, len(shuffled), 7):
        chunk = shuffled[start : start + 7]
        stands += zip(line.places(chunk, NOW), chunk, strict=True)
    assert stands == sorted(stands)
    assert line.places([], NOW) == []


def test_copies_whose_ids_ascend_are_all_due_at_once() -> None:
    line, ids = ReplayOrder(), [ObjectId().binary for _ in range(20)]
    assert set(line.places(ids[:10], NOW) + line.places(ids[10:], NOW)) == {NOW}


def test_no_copy_of_a_chunk_has_to_wait_for_its_place() -> None:
    ids = [ObjectId().binary for _ in range(20)]
    assert ReplayOrder().places(ids[::-1], NOW)[-1] == NOW
