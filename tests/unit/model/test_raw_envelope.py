"""Fresh items are recognised by the bytes of their envelopes as by their fields, and come out of them the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.errors import InvalidBSON
from hypothesis import given
from hypothesis import strategies as st

from mongoq.model.clock import time_of
from mongoq.model.encoding.codec import Encoding, codec_options
from mongoq.model.envelope import REST, new_envelope
from mongoq.model.raw import RawEnvelope, fresh, is_fresh, open_fresh
from tests.unit.scripted import ID, NOW

ENCODING = Encoding(codec_options())
TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)
BYTES = st.binary(max_size=9)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.binary(max_size=9),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(TEXTS, parts, max_size=3),
    max_leaves=8,
)
OTHERS = [Decimal128("1.5"), ID, NOW, Binary(b"x", 5), Binary(b"xy", 2), Timestamp(1, 2), Regex("a", "i")]
OTHERS += [MinKey(), MaxKey(), Int64(5), 2**40, "", {}, [], b""]
HIDDEN = {"text": "\x10attempts\0\0\0\0\0\x08reserved\0"}
"""Its bytes end as those of a fresh item."""


def encoded(document: dict[str, Any]) -> bytes:
    return bson.encode(document, codec_options=ENCODING.options)


def pushed(payload: Any, **changes: Any) -> dict[str, Any]:
    headers = changes.pop("headers", None)
    document = new_envelope("orders", payload, id=ObjectId(), when=NOW, priority=3, headers=headers, once=None)
    return {**document, **changes}


def fresh_items(document: dict[str, Any], queue: str = "orders") -> list[RawEnvelope]:
    return fresh([encoded(document)], queue, ENCODING)


def comes_back(document: dict[str, Any]) -> bool:
    """Say whether it is fresh; then it is as the decoder makes it, but for what a claim sets."""
    decoded = bson.decode(encoded(document), ENCODING.options)
    items = fresh_items(document)
    if not items:
        return False
    (item,), id = items, decoded["_id"]
    assert (item.id, item.priority, time_of(item.at)) == (id.binary, decoded["priority"], decoded["when"])
    (again,) = open_fresh(items, "orders", [id], ENCODING)
    set_by_a_claim = {name: decoded[name] for name in ("when", "attempts", "reserved") if name in decoded}
    assert {**again, **set_by_a_claim} == decoded
    return True


@given(payload=VALUES, headers=st.none() | st.dictionaries(TEXTS, VALUES, max_size=3))
def test_whatever_is_pushed_is_fresh(payload: Any, headers: Any) -> None:
    assert comes_back(pushed(payload, headers=headers))


@pytest.mark.parametrize("payload", OTHERS, ids=repr)
@pytest.mark.parametrize("headers", [None, {"a": 1}])
def test_so_it_is_with_values_of_any_type(payload: Any, headers: Any) -> None:
    assert comes_back(pushed(payload, headers=headers))


@given(
    payload=VALUES | st.just(HIDDEN),
    rest=st.dictionaries(
        st.sampled_from(
            ["by", "key", "once", "token", "error", "headers", "attempts", "priority", "reserved", "other"]
        ),
        VALUES | st.just(HIDDEN) | st.just(HIDDEN["text"]),
    ),
    dropped=st.sets(st.sampled_from(["payload", "reserved"])),
)
def test_any_document_is_fresh_if_its_fields_say_so(payload: Any, rest: dict[str, Any], dropped: set[str]) -> None:
    document = {name: value for name, value in pushed(payload, **rest).items() if name not in dropped}
    assert comes_back(document) == is_fresh(bson.decode(encoded(document), ENCODING.options))


@pytest.mark.parametrize(
    "changes",
    [
        {"by": "host:1:aa"},
        {"by": None},
        {"key": "k"},
        {"once": NOW},
        {"attempts": 1},
        {"attempts": 0.0},
        {"attempts": Int64(0)},
        {"priority": 1.5},
        {"_id": "text"},
        {"when": [NOW]},
        {"when": bson.DatetimeMS(-(2**62))},
    ],
    ids=repr,
)
@pytest.mark.parametrize("payload", [{"n": 1}, HIDDEN, HIDDEN["text"]], ids=repr)
@pytest.mark.parametrize("headers", [None, {"a": 1}, HIDDEN])
def test_what_somebody_has_had_or_some_other_program_wrote_is_not(
    changes: dict[str, Any], payload: Any, headers: Any
) -> None:
    assert not fresh_items(pushed(payload, headers=headers, **changes))


@pytest.mark.parametrize("when", [datetime(1960, 1, 1, tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC), NOW])
@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_the_fields_is_no_matter_nor_is_a_date_before_1970(when: datetime, order: int) -> None:
    document = pushed({"n": 1}, when=when)
    document = {"_id": document.pop("_id"), **dict([*document.items()][::order])}
    assert comes_back(document)


def test_they_are_recognised_up_to_the_first_that_is_not() -> None:
    documents = [pushed(1), pushed(2, headers={"a": 1}), pushed(3, by="host:1:aa"), pushed(4)]
    items = fresh([*map(encoded, documents)], "orders", ENCODING)
    assert [item.id for item in items] == [document["_id"].binary for document in documents[:2]]
    assert [item.at for item in items] == [int(NOW.timestamp() * 1000)] * 2


def test_what_cannot_be_decoded_is_reported_when_it_is_opened_or_where_its_form_says_too_little() -> None:
    raw = encoded(pushed("ABC")).replace(b"ABC", b"\xff\xfe\xfd")
    items = fresh([raw], "orders", ENCODING)
    with pytest.raises(InvalidBSON):
        open_fresh(items, "orders", [ObjectId()], ENCODING)
    with pytest.raises(InvalidBSON):
        fresh([encoded(pushed("ABC", other=1)).replace(b"ABC", b"\xff\xfe\xfd")], "orders", ENCODING)


def test_an_envelope_ends_as_its_tests_think() -> None:
    assert encoded(pushed(HIDDEN["text"], by="x"))[:-1].count(REST[:-2]) == 2
