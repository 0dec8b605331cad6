"""Documents as the bytes that they came as: taken apart as a decoder would, or not at all."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId
from hypothesis import given
from hypothesis import strategies as st

from mongoq.model.copies import CopyIds
from mongoq.model.encoding.codec import codec_options
from mongoq.model.raw import Cutter
from mongoq.protocol.history.copying import Task, copies_of
from mongoq.protocol.settle.move import destination
from tests.unit.scripted import context

TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"))
MILLISECONDS = st.integers(-(2**42), 2**42)
PAYLOADS = st.dictionaries(TEXTS, st.integers(-9, 9) | TEXTS | st.dictionaries(TEXTS, TEXTS))
RESTS = st.dictionaries(st.sampled_from(("priority", "attempts", "key", "headers")), st.integers(-9, 9) | PAYLOADS)


def encoded(document: dict[str, Any]) -> bytes:
    return bson.encode(document, codec_options=codec_options())


def processed(payload: Any, *, ms: int = 5, queue: str = "orders", **rest: Any) -> dict[str, Any]:
    return {"_id": ObjectId(), "q": queue, "payload": payload, **rest, "processed": bson.DatetimeMS(ms)}


@given(queue=TEXTS.filter(bool), payload=PAYLOADS, rest=RESTS, ms=MILLISECONDS)
def test_a_cut_tells_what_a_decoder_does(queue: str, payload: Any, rest: dict[str, Any], ms: int) -> None:
    document = processed(payload, ms=ms, queue=queue, **rest)
    cut = Cutter(queue).cut(encoded(document))
    assert cut is not None
    id, raw, behind, when = cut
    assert (id, raw, when) == (document["_id"].binary, encoded(payload), ms)
    assert behind == encoded(rest)[4:-1]


@pytest.mark.parametrize(
    "document",
    [
        {**processed({}), "_id": "text"},
        {**processed({}), "q": "others"},
        {**processed({}), "q": "orders2"},
        processed([]),
        processed("text"),
        {**processed({}), "processed": 5},
        {**processed({}), "key": "behind"},
        {name: value for name, value in processed({}).items() if name != "processed"},
        {name: value for name, value in processed({}).items() if name != "payload"},
    ],
)
def test_what_is_in_another_order_or_of_another_type_is_not_cut(document: dict[str, Any]) -> None:
    assert Cutter("orders").cut(encoded(document)) is None


def task(**changes: Any) -> Task:
    queue = context("orders")
    return Task(
        queue, destination(queue, "next"), "", timedelta(days=7), timedelta(0), None, None, dry_run=False, **changes
    )


HIDDEN = {"text": "\tprocessed\0abcdef"}
"""Its bytes end as those of a document that ends with its time."""


@given(payloads=st.lists(PAYLOADS, min_size=1, max_size=6), kinds=st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_copies_are_the_same_whatever_their_originals_came_as(payloads: list[Any], kinds: list[int]) -> None:
    documents = []
    for place, (payload, kind) in enumerate(zip(payloads, kinds, strict=False)):
        rest: dict[str, Any] = {"priority": kind, "attempts": 1 + kind // 2}
        if kind == 3:
            rest["headers"] = {"n": place}
        documents.append(processed(payload, ms=1_700_000_000_000 + place, **rest))
    ids = [CopyIds("next", "").of(document).binary for document in documents]
    decoded = [bson.decode(encoded(document), codec_options()) for document in documents]
    both_copies = [copies_of(task(), originals) for originals in (list(map(encoded, documents)), decoded)]
    for copies in both_copies:
        assert copies.ids == ids
        assert copies.result.position == (decoded[-1]["processed"], decoded[-1]["_id"])
    (first,), (second,) = (copies.parts for copies in both_copies)
    assert [document.raw for document in first] == [document.raw for document in second]


def test_what_looks_like_the_time_at_the_end_is_not_taken_for_it() -> None:
    """Another program may have written a document in any order."""
    documents = [{**processed({}, ms=ms, priority=0, attempts=1), "headers": HIDDEN} for ms in (1, 1)]
    raw = list(map(encoded, documents))
    assert Cutter("orders").cut(raw[0]) is not None
    assert copies_of(task(), [*raw]).ids == [CopyIds("next", "").of(document).binary for document in documents]


def doubled(ms: int) -> bytes:
    """A document with two payloads, of which a decoder takes the second."""
    first = encoded(processed({"n": ms}, ms=ms, priority=0, attempts=1))
    fields = first[4:-20] + encoded({"payload": {"second": 0}})[4:-1] + first[-20:]
    return (len(fields) + 4).to_bytes(4, "little") + fields


def time_inside(ms: int) -> bytes:
    """A document that ends with bytes that only look like the time, within another value."""
    fake = bson.Binary(b"\x09processed\0" + (7).to_bytes(8, "little"))
    return encoded({**processed({"n": ms}, ms=ms), "priority": 0, "attempts": fake})


@pytest.mark.parametrize("make", [doubled, time_inside])
def test_documents_of_other_programs_are_copied_as_they_are_decoded(make: Any) -> None:
    originals = [make(ms) for ms in range(4)]
    assert all(Cutter("orders").cut(document) for document in originals), "or this tests nothing"
    decoded = [bson.decode(document, codec_options()) for document in originals]
    copies, expected = copies_of(task(), [*originals]), copies_of(task(), decoded)
    assert copies.ids == expected.ids
    assert [document.raw for part in copies.parts for document in part] == [
        document.raw for part in expected.parts for document in part
    ]
