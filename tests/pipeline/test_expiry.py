"""Outputs, records and filtered items that must be started in time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mongoq
from tests.pipeline.conftest import Site

OVER = datetime(2020, 1, 1, tzinfo=UTC)
FAR = datetime(2090, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def times(site: Site, name: str) -> dict[Any, Any]:
    """Return the times of the items of a queue, by their payloads."""
    return {item.payload: item.start_by for item in site.queue(name).peek(100)}


def remaining(site: Site, name: str) -> dict[Any, timedelta | None]:
    now = datetime.now(UTC)
    return {payload: at and at - now for payload, at in times(site, name).items()}


@pytest.mark.parametrize(("delivery", "forks"), [("exactly-once", True), ("at-most-once", False)])
def test_an_output_has_the_time_that_its_move_gives(site: Site, delivery: Any, forks: bool) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", delivery=delivery)
    def work(payload: Any) -> Any:
        expires = [OVER, HOUR, FAR, None][payload]
        move = mongoq.Move("out", payload=payload, expires=expires)
        return mongoq.Fork([move, mongoq.Move("out", payload=payload + 10)]) if forks else move

    site.queue("raw").push_many(range(4))
    site.drain(pipeline)
    left = remaining(site, "out")
    assert set(left) == {*range(4), *(range(10, 14) if forks else ())}
    assert timedelta(0) < (left[1] or pytest.fail("no time")) <= HOUR + timedelta(minutes=5)
    found = times(site, "out")
    assert (found[0], found[2], found[3]) == (OVER, FAR, None)
    assert {found[payload] for payload in found if payload >= 10} <= {None}
    started = [item.payload for item in site.queue("out").reserve_many(20)]
    assert 0 not in started
    assert len(started) == len(found) - 1


def test_an_output_that_could_never_start_is_a_failure_of_its_item(site: Site) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", max_retries=0)
    def work(payload: Any) -> Any:
        return mongoq.Move("out", delay=60, expires=payload)

    site.queue("raw").push_many([60, "soon"])
    site.drain(pipeline)
    assert sorted(str(payload) for payload, _ in site.letters("line.errors")) == ["60", "soon"]
    assert site.queue("out").size() == 0


def test_a_filter_gives_a_time_to_what_it_moves(site: Site) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["out", "rest"])
    otherwise = mongoq.Move("rest", expires=FAR)
    pipeline.stage("raw", to="out", where={"kind": "a"}, otherwise=otherwise)(lambda payload: payload["n"])
    site.queue("raw").push_many([{"n": 1, "kind": "a"}, {"n": 2, "kind": "b"}])
    site.drain(pipeline)
    assert site.payloads("out") == [1]
    assert [item.start_by for item in site.queue("rest").peek(9)] == [FAR]


def test_a_filter_with_what_no_time_can_be_is_a_fault() -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs=["out", "rest"])
    pipeline.stage("raw", to="out", where={"kind": "a"}, otherwise=mongoq.Move("rest", expires=-1))(lambda _: None)
    with pytest.raises(mongoq.GraphInvalid, match="otherwise: expires: cannot be negative"):
        pipeline.check()


@pytest.mark.parametrize("queues", [("raw",), ("one", "two")])
def test_records_of_a_source_have_their_times(site: Site, queues: tuple[str, ...]) -> None:
    if queues != ("raw",):
        site.broker.bind("raw", *queues)
    pipeline = mongoq.Pipeline("line", outputs="raw")

    @pipeline.source(to="raw", batch=3)
    def rows(position: int | None) -> Iterator[mongoq.Record]:
        for n in range(position or 0, 8):
            expires: Any = [OVER, None, FAR, HOUR][n % 4]
            yield mongoq.Record(n, position=n + 1, expires=expires)

    site.drain(pipeline)
    for name in queues:
        found = times(site, name)
        assert [found[n] for n in (0, 1, 2, 4, 5, 6)] == [OVER, None, FAR] * 2
        assert all(timedelta(0) < (remaining(site, name)[n] or pytest.fail("no time")) <= 2 * HOUR for n in (3, 7))
        assert sorted(item.payload for item in site.queue(name).reserve_many(9)) == [1, 2, 3, 5, 6, 7]


def test_a_record_with_a_time_that_cannot_be_used_stops_its_source(site: Site) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"expires": -1}, "expires: cannot be negative"),
        ({"expires": "soon"}, "expires: 'soon' is no duration"),
        ({"expires": datetime(2040, 1, 1)}, "expires: a naive datetime"),
        ({"expires": 60, "delay": 60}, "expires: the item is due"),
    ]
    for number, (options, problem) in enumerate(cases):
        pipeline = mongoq.Pipeline("line", outputs=f"raw{number}")

        @pipeline.source(to=f"raw{number}", name=f"rows{number}")
        def rows(position: int | None, options: Any = options) -> Iterator[Any]:
            yield mongoq.Record(0, position=1, expires=60)
            yield mongoq.Record(1, position=2, **options)

        with pytest.raises(mongoq.StageStopped) as stopped:
            site.drain(pipeline)
        assert problem in str(stopped.value.__cause__)
        assert site.payloads(f"raw{number}") == [0]
