"""Runs: how they start, how far they have come, and how they end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

import mongoq
from mongoq.testing import VirtualBroker
from tests.pipeline.conftest import QUICK
from tests.waiting import PATIENCE, until


def line(seconds: float = 0.0) -> mongoq.Pipeline:
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="next", retry=QUICK, max_retries=1, concurrency=2)
    def check(payload: Any) -> Any:
        time.sleep(seconds)
        if payload == 3:
            raise ValueError("three")
        return payload

    @pipeline.stage("next", to="out", where={"$ne": 4}, otherwise=mongoq.Drop())
    def enrich(payload: Any) -> Any:
        return mongoq.Drop() if payload == 5 else payload

    return pipeline


def test_a_run_works_until_it_is_stopped(broker: mongoq.Broker) -> None:
    pipeline = line()
    with pipeline.start(broker) as run:
        assert not run.ended
        broker.queue("raw").push_many([1, 2])
        while len(broker.queue("out").peek(5)) < 2:
            assert not run.wait(0.05)
        while not (records := broker.workers()):
            assert not run.wait(0.05)
        assert [record.alive for record in records] == [True]
    assert run.ended
    assert broker.workers() == []
    assert "ended" in repr(run)


def test_a_run_with_asyncio_works_until_it_is_stopped(uri: str, database: str, broker: mongoq.Broker) -> None:
    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as own, line().start_async(own) as run:
            await own.queue("raw").push_many([1, 2])
            while len(await own.queue("out").peek(5)) < 2:
                assert not await run.wait(0.05)
            run.stop()
            assert await run.wait()
            assert run.ended

    asyncio.run(work())
    assert sorted(item.payload for item in broker.queue("out").peek(5)) == [1, 2]


def test_progress_tells_what_became_of_the_items(broker: mongoq.Broker) -> None:
    broker.queue("raw").push_many([1, 2, 3, 4, 5])
    result = line().drain(broker)
    check, enrich = result.stages["check"], result.stages["enrich"]
    assert (check.queues, check.moved, check.retried, check.dead, check.done) == (("raw",), 4, 1, 1, 0)
    assert (enrich.moved, enrich.dropped, enrich.screened) == (2, 1, 1)
    assert (check.settled, enrich.settled, result.settled) == (5, 4, 9)
    assert (check.waiting, check.scheduled, check.reserved, check.running) == (0, 0, 0, 0)
    assert result.errors == {"line.errors": 1}
    assert result.ended
    assert not check.stopped
    assert check.seconds > 0
    assert check.per_second > 0


def test_progress_tells_of_items_that_went_to_the_error_queue_before_any_run(broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("raw")
    id = queue.push("spent")
    for _ in range(2):  # by somebody who has died twice
        assert queue.reserve()
        raw.update_one({"_id": id}, {"$set": {"when": datetime(2020, 1, 1, tzinfo=UTC)}})
    queue.push_many(["misfit", 1, "another", 2, "last"])
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="out", model=int, max_retries=1)
    def check(payload: Any) -> Any:
        return payload

    result = pipeline.drain(broker)
    assert result.errors == {"line.errors": 4}
    check_ = result.stages["check"]
    assert (check_.moved, check_.dead, check_.settled) == (2, 4, 6)


def test_progress_tells_what_is_under_way(broker: mongoq.Broker) -> None:
    broker.queue("raw").push_many(range(10, 20))
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    go = threading.Event()

    @pipeline.stage("raw", to="out", concurrency=2, prefetch=3)
    def work(payload: Any) -> Any:
        go.wait(30)
        return payload

    with pipeline.start(broker) as run:
        until(lambda: (counts := run.progress().stages["work"]).running >= 2 and counts.reserved >= 5)
        counts = run.progress().stages["work"]
        assert counts.reserved + counts.waiting == 10
        assert counts.settled == 0
        go.set()


def test_progress_counts_items_that_wait_for_others_of_their_sequence(broker: mongoq.Broker) -> None:
    broker.queue("raw").push_many(range(5), sequence="a")
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    go = threading.Event()

    @pipeline.stage("raw", to="out")
    def work(payload: Any) -> Any:
        go.wait(30)
        return payload

    with pipeline.start(broker) as run:
        until(lambda: (counts := run.progress().stages["work"]).reserved == 1 and counts.blocked == 4)
        go.set()


def test_a_run_that_is_stopped_lets_handlers_finish_and_gives_back_the_rest(broker: mongoq.Broker) -> None:
    queue = broker.queue("raw")
    queue.push_many(range(10, 20))
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")
    begun, go = threading.Event(), threading.Event()

    @pipeline.stage("raw", to="out", prefetch=9)
    def work(payload: Any) -> Any:
        begun.set()
        assert go.wait(PATIENCE)
        return payload

    with pipeline.start(broker) as run:
        assert begun.wait(PATIENCE)
        run.stop()
        go.set()
        run.wait()
    assert len(broker.queue("out").peek(20)) == 1
    assert {(item.attempts, item.token) for item in queue.peek(20)} == {(0, None)}
    assert queue.size() == 9


def test_what_the_block_raises_comes_out_of_it_and_the_run_ends(broker: mongoq.Broker) -> None:
    with pytest.raises(ZeroDivisionError), line().start(broker) as run:
        raise ZeroDivisionError
    assert run.ended


def test_a_signal_ends_a_run_that_is_waited_for(broker: mongoq.Broker, signals: list[int]) -> None:
    before, over = signal.getsignal(signal.SIGTERM), threading.Event()

    def send_again() -> None:
        while not over.wait(0.3):  # the first may come before anybody waits
            os.kill(os.getpid(), signal.SIGTERM)

    with line().start(broker) as run:
        sender = threading.Thread(target=send_again)
        sender.start()
        ended = run.wait(PATIENCE)
        over.set()
        sender.join()
        assert ended
    assert signals
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_tells_whether_it_was_interrupted(
    broker: mongoq.Broker, number: signal.Signals, signals: list[int]
) -> None:
    pipeline = mongoq.Pipeline("line", errors="errors")
    interrupted, over = threading.Event(), threading.Event()

    @pipeline.sink("raw", prefetch=0)
    def load(n: int) -> None:
        if not interrupted.is_set():
            interrupted.set()
            os.kill(os.getpid(), number)
        over.wait(0.1)  # 400 of them last longer than any stop

    broker.queue("raw").push_many(range(400))
    result = pipeline.drain(broker)
    assert (result.ended, result.interrupted, signals) == (True, True, [number])
    assert broker.queue("raw").size() > 0
    over.set()
    result = pipeline.drain(broker)
    assert (result.ended, result.interrupted, signals) == (True, False, [number])
    assert broker.queue("raw").size() == 0


def test_a_stage_that_stopped_is_named_by_the_progress(broker: mongoq.Broker) -> None:
    broker.queue("raw").push(1)
    pipeline = mongoq.Pipeline("line")

    @pipeline.sink("raw", max_retries=0)
    def fail(payload: Any) -> Any:
        raise ValueError

    @pipeline.sink("other")
    def idle(payload: Any) -> Any:
        return None

    with pytest.raises(mongoq.StageStopped), pipeline.start(broker) as run:
        while not run.progress().stages["fail"].stopped:
            time.sleep(0.02)
        assert not run.ended
        assert not run.progress().stages["idle"].stopped


def test_bad_arguments_are_refused_before_anything_starts(broker: mongoq.Broker) -> None:
    pipeline, before = line(), set(threading.enumerate())
    for options in ({"grace": -1}, {"heartbeat": 0}, {"grace": "x"}):
        with pytest.raises(mongoq.ArgumentInvalid):
            pipeline.start(broker, **options)  # type: ignore[arg-type]
    for wrong in (None, "mongodb://", broker.queue("raw")):
        with pytest.raises(mongoq.ArgumentInvalid, match="broker"):
            pipeline.start(wrong)  # type: ignore[arg-type]
    with pytest.raises(mongoq.ArgumentInvalid, match="progress"):
        pipeline.drain(broker, progress=1)  # type: ignore[arg-type]
    with pytest.raises(mongoq.ArgumentInvalid, match="start_async and drain_async"):
        pipeline.start(mongoq.AsyncBroker.__new__(mongoq.AsyncBroker))  # type: ignore[arg-type]
    with VirtualBroker() as virtual, pytest.raises(mongoq.ArgumentInvalid, match="run_until_idle"):
        pipeline.start(virtual)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "mongoq-line"]


def test_coroutine_functions_need_asyncio(uri: str, database: str, broker: mongoq.Broker) -> None:
    broker.queue("raw").push(1)
    pipeline = mongoq.Pipeline("line", errors="line.errors", outputs="out")

    @pipeline.stage("raw", to="next")
    async def first(payload: Any) -> Any:
        return payload + 1

    @pipeline.stage("next", to="out")
    async def second(payload: Any) -> Any:
        return payload + 1

    with pytest.raises(mongoq.GraphInvalid) as invalid:
        pipeline.drain(broker)
    assert len(invalid.value.faults) == 2
    assert "stage 'first'" in invalid.value.faults[0]

    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as own:
            await pipeline.drain_async(own)

    asyncio.run(work())
    assert [item.payload for item in broker.queue("out").peek(5)] == [3]


def test_a_drain_shows_its_progress(broker: mongoq.Broker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.queue("raw").push_many([1, 2])
    line().drain(broker, progress=True)
    output = capsys.readouterr().out
    assert "check" in output
    assert "enrich" in output


def test_what_was_reported_is_not_raised_again_at_the_end_of_the_block(
    uri: str, database: str, broker: mongoq.Broker
) -> None:
    broker.queue("raw").push(1)
    pipeline = mongoq.Pipeline("line")

    @pipeline.sink("raw", max_retries=0)
    def fail(payload: Any) -> Any:
        raise ValueError

    with pipeline.start(broker) as run, pytest.raises(mongoq.StageStopped):
        run.wait()

    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as own, pipeline.start_async(own) as run:
            with pytest.raises(mongoq.StageStopped):
                await run.wait()

    asyncio.run(work())


def test_what_is_in_the_queues_after_a_drain_is_no_second_old(broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("line", errors="line.errors")

    @pipeline.sink("raw", max_retries=0)
    def fail(payload: Any) -> Any:
        raise ValueError

    for number in (1, 2, 3):
        broker.queue("raw").push(number)
        assert pipeline.drain(broker).errors == {"line.errors": number}


def test_an_item_of_a_batch_has_a_hash_of_its_own(broker: mongoq.Broker) -> None:
    broker.queue("raw").push_many(range(6))
    pipeline = mongoq.Pipeline("line", errors="line.errors")
    alone: dict[Any, set[str]] = {}

    @pipeline.sink("raw", batch=3, retry=QUICK)
    def work(payloads: Any, job: Any) -> Any:
        for item in job.items:
            alone.setdefault(item.id, set()).add(job.hash_of(item))
        return [ValueError("again") if item.attempts < 3 else None for item in job.items]

    pipeline.drain(broker)
    assert [len(hashes) for hashes in alone.values()] == [1] * 6
    assert len(set.union(*alone.values())) == 6


def test_some_stages_run_alone(broker: mongoq.Broker) -> None:
    broker.queue("raw").push_many([1, 2])
    progress = line().drain(broker, stages="check")
    assert list(progress.stages) == ["check"]
    assert progress.stages["check"].moved == 2
    assert broker.queue("next").size() == 2
    with line().start(broker, stages=["enrich"]) as run:
        while broker.queue("out").size() < 2:
            assert not run.wait(0.05)
    assert list(run.progress().stages) == ["enrich"]


async def _of_some(uri: str, database: str) -> list[str]:
    async with mongoq.connect_async(uri, database=database) as own:
        async with line().start_async(own, stages=["enrich"]) as run:
            assert not await run.wait(0.01)
        return list((await line().drain_async(own, stages=["check"])).stages)


def test_some_stages_run_alone_with_asyncio(uri: str, database: str) -> None:
    assert asyncio.run(_of_some(uri, database)) == ["check"]


def test_stages_that_are_none_are_refused(broker: mongoq.Broker) -> None:
    wrong: list[tuple[Any, str]] = [
        (["chekc", "enrich"], "stages: pipeline 'line' has no 'chekc'; it has 'check', 'enrich'"),
        ([], "stages: this names none; it has 'check', 'enrich'"),
        ([["check"]], "stages: names of stages and sources, not "),
        (7, "stages: names of stages and sources, not 7"),
    ]
    for stages, sentence in wrong:
        with pytest.raises(mongoq.ArgumentInvalid, match=sentence):
            line().start(broker, stages=stages)


def test_what_is_not_run_needs_nothing(broker: mongoq.Broker) -> None:
    pipeline = line()

    @pipeline.stage("more", to="out")
    async def later(payload: Any) -> Any:
        return payload

    assert list(pipeline.drain(broker, stages=["check"]).stages) == ["check"]
    with pytest.raises(mongoq.GraphInvalid, match="stage 'later'"):
        pipeline.drain(broker)
