"""Replies are cut between documents, and whatever the bytes of a document are, its bounds are found."""

from __future__ import annotations

from itertools import pairwise

import bson
from bson import Binary
from bson.binary import UUID_SUBTYPE
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st

from mongoq.drivers.documents import Garbled, decode, split_reply

documents = st.lists(st.integers(0, 300), min_size=1, max_size=30).map(
    lambda sizes: [bson.encode({"n": n, "x": "x" * size}) for n, size in enumerate(sizes)]
)


@given(parts=documents, size=st.integers(0, 1_000))
def test_a_reply_is_cut_between_documents(parts: list[bytes], size: int) -> None:
    cut = [bytes(each) for each in split_reply(b"".join(parts), size)]
    assert b"".join(cut) == b"".join(parts)
    for each in cut:
        assert len(each) <= size or each in parts
    assert [document["n"] for each in cut for document in decode(each, naive=True)] == list(range(len(parts)))


@given(parts=documents, size=st.integers(0, 1_000))
def test_parts_are_as_large_as_they_may_be(parts: list[bytes], size: int) -> None:
    cut = [bytes(each) for each in split_reply(b"".join(parts), size)]
    for left, right in pairwise(cut):
        document = right[: int.from_bytes(right[:4], "little")]
        assert len(left) + len(document) > size


def test_a_small_reply_is_not_copied() -> None:
    raw = bson.encode({"n": 1}) * 3
    assert next(split_reply(raw)) is raw


def stored(name: bytes, value: bytes, *, kind: int) -> bytes:
    """Return a document with one field, as bytes that no driver would write, beside a UUID that is none."""
    strange = bytes([5]) + b"u\0" + (0).to_bytes(4, "little") + bytes([UUID_SUBTYPE])
    fields = bytes([kind]) + name + b"\0" + value + strange
    return (len(fields) + 5).to_bytes(4, "little") + fields + b"\0"


def text(value: bytes) -> bytes:
    return (len(value) + 1).to_bytes(4, "little") + value + b"\0"


STRING, REGEX = 2, 11


def test_what_is_written_for_unreadable_text_is_text_where_somebody_wrote_it() -> None:
    name = "\ufffd".encode()
    assert decode(stored(name, text(name), kind=STRING), naive=True) == [{"\ufffd": "\ufffd", "u": Binary(b"", 4)}]


def test_text_that_is_not_utf_8_is_distinguished_from_all_other_text() -> None:
    [document] = decode(stored(b"a", text(b"x\xff"), kind=STRING), naive=True)
    assert document["a"] == Garbled("x\ufffd")
    [document] = decode(stored(b"a", b"x\xff\0i\0", kind=REGEX), naive=True)
    assert document["a"] == Garbled("x\ufffd")
    inner = stored(b"\xff", text(b"x"), kind=STRING)
    [document] = decode(bson.encode({"a": RawBSONDocument(inner)}), naive=True)
    assert document["a"] == Garbled("{'\ufffd': 'x', 'u': Binary(b'', 4)}")
