"""Which items of a frame are found to be the cause of its failure, and after how many runs."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mongoq.pipeline.graph.graph import Graph, Stage
from mongoq.pipeline.on_spark.frame_batch import Bisection
from mongoq.pipeline.on_spark.frame_settler import consumer_of


def tried(size: int, guilty: Collection[int]) -> tuple[set[int], set[int], set[int], int]:
    """Return which were blamed, put off, and passed, and how many runs that took."""
    bisection, passed, runs = Bisection(size), set[int](), 0
    while (part := bisection.next()) is not None:
        runs += 1
        if any(place in part for place in guilty):
            bisection.record_failure()
        else:
            passed |= set(part)
            bisection.record_success()
    blamed = {place for part in bisection.blamed for place in part}
    return blamed, {place for part in bisection.put_off for place in part}, passed, runs


@given(st.integers(1, 3_000), st.data())
def test_each_item_comes_to_one_end_and_no_guilty_one_passes(size: int, data: st.DataObject) -> None:
    guilty = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    blamed, put_off, passed, runs = tried(size, guilty)
    assert sorted([*blamed, *put_off, *passed]) == list(range(size))
    assert passed.isdisjoint(guilty)
    assert runs <= 130
    if passed:
        assert blamed <= guilty


@pytest.mark.parametrize("size", [1, 2, 3, 1_000, 10_000, 500_000])
@pytest.mark.parametrize("place", [0, -1])
def test_one_guilty_item_is_found_in_about_two_runs_for_each_halving(size: int, place: int) -> None:
    guilty = range(size)[place]
    blamed, put_off, passed, runs = tried(size, {guilty})
    assert (blamed, put_off, len(passed)) == ({guilty}, set(), size - 1)
    assert runs <= 2 * (size - 1).bit_length()


def test_a_function_that_always_fails_is_recognised_by_that_nothing_passes() -> None:
    blamed, put_off, passed, runs = tried(10_000, range(10_000))
    assert (len(blamed), put_off, passed) == (10_000, set(), set())
    assert runs <= 40


def test_what_fails_alike_for_all_is_not_tried_again() -> None:
    bisection = Bisection(10, alike=True)
    assert (bisection.next(), bisection.blamed) == (None, [range(10)])


def test_among_many_guilty_ones_those_that_were_not_separated_are_put_off() -> None:
    guilty = set(range(0, 10_000, 50))
    blamed, put_off, passed, _ = tried(10_000, guilty)
    assert blamed <= guilty
    assert blamed
    assert put_off
    assert passed


def stage(name: str) -> Stage:
    return Stage(name, ("q",), (), print)


def test_consumers_have_names_of_their_own_that_fit() -> None:
    def named(pipeline: str, own: str, queue: str) -> str:
        return consumer_of(Graph(pipeline, ()), stage(own), queue)

    assert named("flights", "enrich", "checked") == "flights/enrich/checked"
    assert named("a/b", "c", "d") != named("a", "b/c", "d")
    long = [named("p" * 120, "é" * 60, "q" * 119 + digit) for digit in "12"]
    assert long[0] != long[1]
    assert all(len(each.encode()) <= 120 for each in long)
