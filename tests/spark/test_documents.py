"""Replies are cut between documents, so that no more than a part of one is decoded at once."""

from __future__ import annotations

from itertools import pairwise

import bson
from hypothesis import given
from hypothesis import strategies as st

from mongoq.drive.documents import decoded, slices

documents = st.lists(st.integers(0, 300), min_size=1, max_size=30).map(
    lambda sizes: [bson.encode({"n": n, "x": "x" * size}) for n, size in enumerate(sizes)]
)


@given(parts=documents, size=st.integers(0, 1_000))
def test_a_reply_is_cut_between_documents(parts: list[bytes], size: int) -> None:
    cut = [bytes(each) for each in slices(b"".join(parts), size)]
    assert b"".join(cut) == b"".join(parts)
    for each in cut:
        assert len(each) <= size or each in parts
    assert [document["n"] for each in cut for document in decoded(each, naive=True)] == list(range(len(parts)))


@given(parts=documents, size=st.integers(0, 1_000))
def test_parts_are_as_large_as_they_may_be(parts: list[bytes], size: int) -> None:
    cut = [bytes(each) for each in slices(b"".join(parts), size)]
    for left, right in pairwise(cut):
        first = right[: int.from_bytes(right[:4], "little")]
        assert len(left) + len(first) > size


def test_a_small_reply_is_not_copied() -> None:
    raw = bson.encode({"n": 1}) * 3
    assert next(slices(raw)) is raw
