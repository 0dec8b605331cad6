"""A pipeline at work in Spark's executors: everything is as with workers, and faults are reported at the start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from mongoq.embedded import EmbeddedServer
from mongoq.errors import (
    ArgumentInvalid,
    ConsumerBusy,
    GraphInvalid,
    ServerUnavailable,
    StageStopped,
    TransactionsUnavailable,
)
from mongoq.spark import ExecutorError, ExecutorsUnready
from tests.docs.blocks import blocks

QUICK = mongoq.Fixed(0.01)
PATIENCE = 120
"""Graphs that are tried when not all are."""


def graph() -> mongoq.Pipeline:
    """A pipeline in which items have each of the ends that a stage can give them."""
    pipeline = mongoq.Pipeline("graph", errors="errors", outputs=["out", "pair"], trail=True)

    @pipeline.stage("raw", to=["checked", "out"], max_retries=1, retry=QUICK)
    def check(n: int, job: Any) -> Any:
        if n < 2:
            return mongoq.Drop()
        if n == 2:
            return mongoq.Dead("two is too few")
        if n == 3 or (n == 4 and job.item.attempts == 1):
            raise ValueError(f"no {n}")
        return mongoq.Fork([mongoq.Move("checked", payload=n), mongoq.Move("out", payload=job.delivery_hash)])

    @pipeline.stage("checked", to=["left", "right"])
    def split(n: int) -> Any:
        side = {"n": n // 2, "side": n}
        return mongoq.Move("left" if n % 2 else "right", payload=side)

    @pipeline.join(["left", "right"], on="n", to="pair")
    def unite(left: Any, right: Any) -> Any:
        return {"left": left["side"], "right": right["side"]}

    return pipeline


def outcome(broker: mongoq.Broker) -> dict[str, Any]:
    queues = {queue: broker.queue(queue).peek(100) for queue in ("raw", "checked", "out", "pair", "errors")}
    trails = [broker.trail(item.id) for item in queues["pair"]]
    return {
        **{queue: sorted((item.payload for item in items), key=repr) for queue, items in queues.items()},
        "reasons": sorted(item.origin.reason for item in queues["errors"] if item.origin),
        # the two sides of a pair were settled side by side
        "hops": sorted(sorted(hop.stage for hop in trail or ()) for trail in trails),
    }


def test_items_come_to_the_same_as_with_workers(drained: Any, broker: mongoq.Broker, store: Any) -> None:
    ids = [ObjectId() for _ in range(10)]
    place = {"database": store.collection.database.name, "collection": f"{store.collection.name}_beside"}
    with mongoq.connect(store.uri, **place) as beside:
        for each in (broker, beside):
            for n, id in enumerate(ids):
                each.queue("raw").push(n, id=id)
        threads = graph().drain(beside)
        expected = outcome(beside)
    progress = drained(graph())
    assert outcome(broker) == expected
    assert len(expected["pair"]) == 3
    assert expected["errors"] == [2, 3]
    names = ("moved", "done", "dropped", "retried", "dead", "waiting", "reserved")
    assert {stage: [getattr(counts, name) for name in names] for stage, counts in progress.stages.items()} == {
        stage: [getattr(counts, name) for name in names] for stage, counts in threads.stages.items()
    }
    assert progress.errors == threads.errors == {"errors": 2}
    assert progress.ended
    assert not progress.interrupted
    store.collection.database.drop_collection(place["collection"])


def test_a_source_runs_in_a_task_until_it_has_ended(drained: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("fed", outputs="raw")

    @pipeline.source(to="raw")
    def rows(position: Any) -> Any:
        for number in range(position or 0, 7):
            yield mongoq.Record(number, position=number + 1)

    assert drained(pipeline).sources["rows"].pushed == 7
    assert sorted(item.payload for item in broker.queue("raw").peek(9)) == list(range(7))
    assert drained(pipeline).sources["rows"].pushed == 0


@pytest.mark.prove
@pytest.mark.parametrize("format", ["pandas", "arrow"])
def test_a_stage_of_frames_runs_in_executors(drained: Any, broker: mongoq.Broker, format: Any) -> None:
    pipeline = mongoq.Pipeline("frames", errors="frames.errors", outputs=["even", "odd"])

    @pipeline.batch_stage("raw", to=["even", "odd"], format=format, batch=100)
    def sort(rows: Any) -> Any:
        numbers = rows["n"].to_list() if format == "pandas" else rows.column("n").to_pylist()
        to = [None if n == 7 else "odd" if n % 2 else "even" for n in numbers]
        dead = ["seven" if n == 7 else None for n in numbers]
        if format == "pandas":
            return rows.assign(_to=to, _dead=dead)[rows["n"] != 3]
        table = rows.append_column("_to", [to]).append_column("_dead", [dead])
        return table.filter([n != 3 for n in numbers])

    broker.queue("raw").push_many([{"n": n} for n in range(10)])
    progress = drained(pipeline).stages["sort"]
    assert (progress.moved, progress.dropped, progress.dead) == (8, 1, 1)
    by_queue = {queue: [item.payload["n"] for item in broker.queue(queue).peek(10)] for queue in ("even", "odd")}
    assert {queue: sorted(numbers) for queue, numbers in by_queue.items()} == {
        "even": [0, 2, 4, 6, 8],
        "odd": [1, 5, 9],
    }


def enriching(**options: Any) -> mongoq.Pipeline:
    """A stage for each item, one on frames, and one on batches."""
    pipeline = mongoq.Pipeline("enriching", outputs="out", **options)

    @pipeline.stage("raw", to="checked")
    def check(payload: Any) -> Any:
        return {**payload, "checked": True}

    @pipeline.frame_stage("checked", to="rich", schema="n long, checked boolean")
    def enrich(rows: Any) -> Any:
        return rows.where("n != 3").selectExpr("*", "n * 10 AS tenfold", "CASE n WHEN 7 THEN 'seven' END AS _dead")

    @pipeline.batch_stage("rich", to="out", format="pandas")
    def finish(rows: Any) -> Any:
        return rows.assign(more=rows["tenfold"] + 1)

    return pipeline


def test_frames_items_and_batches_go_together(drained: Any, broker: mongoq.Broker, tmp_path: Path) -> None:
    broker.queue("raw").push_many([{"n": n} for n in range(10)])
    progress = drained(enriching(errors="errors"), checkpoint=tmp_path)
    counts = progress.stages["enrich"]
    assert (counts.moved, counts.dropped, counts.dead, counts.reserved) == (8, 1, 1, 0)
    assert counts.seconds >= 0
    sums = sorted(item.payload["n"] * 1000 + item.payload["more"] for item in broker.queue("out").peek(20))
    assert sums == [n * 1000 + n * 10 + 1 for n in range(10) if n not in (3, 7)]
    assert [item.payload["n"] for item in broker.queue("errors").peek(2)] == [7]
    broker.queue("raw").push({"n": 11})
    assert drained(enriching(errors="errors"), checkpoint=str(tmp_path)).stages["finish"].moved == 1


def test_a_frame_stage_needs_a_checkpoint(start: Any, broker: mongoq.Broker) -> None:
    with pytest.raises(ArgumentInvalid, match="checkpoint: stage 'enrich' takes frames, and needs a folder"):
        start(enriching())
    with pytest.raises(ArgumentInvalid, match="checkpoint: the path of a folder, not 7"):
        start(enriching(), checkpoint=7)
    with pytest.raises(ArgumentInvalid, match="checkpoint: stage 'enrich': Spark cannot write there: .*/proc/nothing"):
        start(enriching(), checkpoint="/proc/nothing")
    with pytest.raises(GraphInvalid, match="stage 'enrich': it takes frames, and so runs on Spark only"):
        enriching().drain(broker)
    assert list(enriching().drain(broker, stages=["check"]).stages) == ["check"]


def test_a_frame_stage_on_spark_connect_is_refused_before_anything_is_sent() -> None:
    class Connected:
        """What a run looks at of a session of Spark Connect, which needs packages of its own."""

        __module__ = "pyspark.sql.connect.session"
        conf = range = readStream = None  # noqa: N815  # Spark's name

    pipeline = mongoq.Pipeline("frames", outputs=["out", "done"])

    @pipeline.frame_stage("raw", to="out", schema="n int")
    def enrich(frame: Any) -> Any:
        return frame

    @pipeline.frame_stage("other", to="out", schema="n int")
    def check(frame: Any) -> Any:
        return frame

    @pipeline.stage("plain", to="done")
    def copy(payload: Any) -> Any:
        return payload

    nowhere = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100"
    with pytest.raises(mongoq.GraphInvalid) as caught:
        pipeline.run_on_spark(Connected(), nowhere, tasks=1, checkpoint="/tmp/x")  # type: ignore[arg-type]
    for fault, name in zip(caught.value.faults, ("enrich", "check"), strict=True):
        assert fault.startswith(f"stage {name!r}: a frame stage needs a classic Spark session")
    with pytest.raises(mongoq.ServerUnavailable):  # which is looked for next
        pipeline.run_on_spark(Connected(), nowhere, tasks=1, stages=["copy"])  # type: ignore[arg-type]


def test_some_stages_run_on_spark_and_others_on_workers(start: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("shared", outputs="out")
    here = os.getpid()

    @pipeline.stage("raw", to="next", max_retries=0)
    def far(payload: int) -> Any:
        assert os.getpid() != here
        return payload + 1

    @pipeline.stage("next", to="out", max_retries=0)
    def near(payload: int) -> Any:
        assert os.getpid() == here
        return payload * 10

    with pipeline.start(broker, stages=["near"]) as workers, start(pipeline, stages="far", available_now=False) as run:
        broker.queue("raw").push_many([1, 2, 3])
        deadline = time.monotonic() + PATIENCE
        while len(broker.queue("out").peek(3)) < 3 and time.monotonic() < deadline:
            assert not run.wait(0.1)
            assert not workers.ended
    assert sorted(item.payload for item in broker.queue("out").peek(9)) == [20, 30, 40]
    assert list(run.progress().stages) == ["far"]
    assert run.progress().stages["far"].moved == 3
    assert workers.progress().stages["near"].moved == 3
    assert run.progress().interrupted


def test_a_stage_without_an_error_queue_stops_and_the_others_go_on(drained: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("line", outputs="out")

    @pipeline.stage("raw", to="next", max_retries=1, retry=QUICK)
    def check(payload: Any) -> Any:
        if payload == 3:
            raise ValueError("three is wrong")
        return payload

    @pipeline.stage("next", to="out")
    def enrich(payload: Any) -> Any:
        return payload

    broker.queue("raw").push(3)
    broker.queue("next").push_many([1, 2])
    with pytest.raises(StageStopped, match="stage 'check' has stopped: item .* of queue 'raw'") as caught:
        drained(pipeline)
    assert caught.value.queue == "raw"
    assert isinstance(caught.value.__cause__, ExecutorError)
    assert "ValueError: three is wrong" in str(caught.value.__cause__)
    assert [item.payload for item in broker.queue("raw").peek(3)] == [3]
    assert broker.queue("out").size() == 2


def test_a_handler_that_ends_its_process_fails_its_item_alone(drained: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("poison", errors="poison.errors", outputs="out")

    @pipeline.stage("raw", to="out", max_retries=1, lease=1, prefetch=0)
    def check(payload: Any) -> Any:
        if payload == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return payload

    broker.queue("raw").push_many(range(12))
    progress = drained(pipeline)
    assert sorted(item.payload for item in broker.queue("out").peek(20)) == [*range(7), *range(8, 12)]
    assert [item.payload for item in broker.queue("poison.errors").peek(2)] == [7]
    assert progress.errors == {"poison.errors": 1}


@pytest.mark.prove
def test_a_handler_that_takes_longer_than_a_shift_is_waited_for(
    drained: Any, broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = mongoq.Pipeline("slow", outputs="out")

    @pipeline.stage("raw", to="out", prefetch=0)
    def check(payload: Any, job: Any) -> Any:
        time.sleep(7)  # a task ends after five seconds
        return job.item.attempts

    broker.queue("raw").push_many([1, 2])
    drained(pipeline)
    assert [item.payload for item in broker.queue("out").peek(3)] == [1, 1]


@pytest.mark.prove
def test_what_handlers_remember_lasts_over_shifts(spark: Any, start: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("line", outputs="out")
    payloads: list[int] = []

    @pipeline.stage("raw", to="out")
    def check(payload: Any) -> Any:
        payloads.append(payload)
        return {"pid": os.getpid(), "seen": len(payloads)}

    with start(pipeline, available_now=False, tasks=1) as run:
        for number in (1, 2):
            broker.queue("raw").push(number)
            deadline = time.monotonic() + PATIENCE
            while broker.queue("out").size() < number and time.monotonic() < deadline:
                assert not run.wait(0.05)
            run.wait(2)  # the shift has ended
    results = [item.payload for item in broker.queue("out").peek(3)]
    of_one = Counter(each["pid"] for each in results)
    assert all(max(each["seen"] for each in results if each["pid"] == pid) == number for pid, number in of_one.items())
    assert payloads == []


# --- what is reported at the start -------------------------------------------------------------------


def line(handler: Any, **options: Any) -> mongoq.Pipeline:
    pipeline = mongoq.Pipeline("line", outputs="out")
    pipeline.stage("raw", to="out", name="check", **options)(handler)
    return pipeline


def same(payload: Any) -> Any:
    return payload


class Locked:
    """A handler that is no function."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __call__(self, payload: Any) -> Any:
        return payload


def test_a_handler_that_cannot_be_sent_is_named_with_its_stage(start: Any, broker: mongoq.Broker) -> None:
    lock = threading.Lock()

    def check(payload: Any) -> Any:
        with lock:
            return payload

    broker.queue("raw").push(1)
    with pytest.raises(GraphInvalid, match=r"stage 'check': it cannot be sent to the executors: .* \(of 'lock'\)"):
        start(line(check))
    for handler in (
        Locked(lock),
        Locked(lock).__call__,
        partial(check),
        partial(pow, Locked(lock)),
        lambda _: check(_),
    ):
        with pytest.raises(
            GraphInvalid, match=r"stage 'check': it cannot be sent to the executors: .* \(of '.*lock'\)"
        ):
            start(line(handler))
    assert broker.queue("raw").peek(1)[0].attempts == 0


def test_a_module_that_executors_lack_is_named(
    start: Any, broker: mongoq.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_on_the_driver.py").write_text("def check(payload):\n    return payload\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_on_the_driver  # type: ignore[import-not-found]

    broker.queue("raw").push(1)
    with pytest.raises(ExecutorsUnready, match="pipeline 'line': ModuleNotFoundError: No module named 'only_on_the_dr"):
        start(line(only_on_the_driver.check))
    assert broker.queue("raw").peek(1)[0].attempts == 0


SCRIPT = """
import sys
from functools import cache, lru_cache
from pydantic import BaseModel
from pyspark.sql import SparkSession
import mongoq

class Order(BaseModel):
    number: int
    total: float = 0

RATE = 1.21
pipeline = mongoq.Pipeline("script", errors="errors", outputs="out")

@pipeline.stage("raw", to="out", model=Order, retry=mongoq.Fixed(0.01), max_retries=1)
def taxed(order: Order) -> Order:
    return order.model_copy(update={"total": order.total * rate() * power(2, 3) / 8})

@cache
def rate():
    return RATE

@lru_cache(maxsize=8)
def power(base, exponent):  # which names itself
    return 1 if exponent == 0 else base * power(base, exponent - 1)

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
with pipeline.run_on_spark(spark, sys.argv[1], database=sys.argv[2], available_now=True) as run:
    run.wait()
    print("moved", run.progress().stages["taxed"].moved, run.progress().errors)
spark.stop()
"""


@pytest.mark.prove
def test_a_script_needs_no_module_of_its_own(
    store: Any, client: Any, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    script, name = tmp_path / "script.py", f"script_{store.collection.name}"
    script.write_text(SCRIPT)
    with mongoq.connect(store.uri, database=name) as broker:
        broker.queue("raw").push_many([{"number": 1, "total": 100}, {"number": "none"}])
        environment = {**os.environ, **spark_environment}
        command = [sys.executable, str(script), store.uri, name]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert ended.returncode == 0, ended.stderr[-3000:]
        assert "moved 1 {'errors': 1}" in ended.stdout
        assert [item.payload for item in broker.queue("out").peek(2)] == [{"number": 1, "total": 121.0}]
    client.drop_database(name)


def test_a_coroutine_function_is_refused(start: Any) -> None:
    async def check(payload: Any) -> Any:
        return payload

    with pytest.raises(GraphInvalid, match="stage 'check': handler: .*check is a coroutine function"):
        start(line(check))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"available_now": 1}, "available_now: a bool, not int"),
    ({"trigger": 5}, "trigger: either this or available_now"),
    ({"available_now": False, "trigger": "10 seconds"}, "trigger: "),
    ({"tasks": 0}, "tasks: "),
    ({"heartbeat": -1}, "heartbeat: "),
    ({"stages": ["chekc"]}, "stages: pipeline 'line' has no 'chekc'; it has 'check'"),
    ({"stages": []}, "stages: this names none; it has 'check'"),
    ({"database": "a b"}, "database"),
]


def test_a_bad_argument_is_named(start: Any) -> None:
    for options, sentence in BAD:
        with pytest.raises(ArgumentInvalid, match=sentence):
            start(line(same), **options)


def test_what_is_no_session_is_refused(store: Any) -> None:
    with pytest.raises(ArgumentInvalid, match="spark: a SparkSession, not str"):
        line(same).run_on_spark("local[2]", store.uri)  # type: ignore[arg-type]


def test_a_server_out_of_reach_is_reported(spark: Any) -> None:
    with pytest.raises(ServerUnavailable):
        line(same).run_on_spark(spark, "mongodb://u:s3cret@127.0.0.1:1/?serverSelectionTimeoutMS=200")


def test_a_standalone_server_is_refused_where_transactions_are_needed(spark: Any) -> None:
    pipeline = mongoq.Pipeline("fork", outputs="out")

    @pipeline.join(["a", "b"], on="n", to="out")
    def unite(a: Any, b: Any) -> Any:
        return a

    with (
        EmbeddedServer(replica_set=None) as standalone,
        pytest.raises(TransactionsUnavailable, match="join 'unite'"),
    ):
        pipeline.run_on_spark(spark, standalone.uri, database="app")


def test_the_page_runs(spark: Any, store: Any, client: Any) -> None:
    app = f"app_{store.collection.name}"
    replacements = {"mongodb://localhost:27017": store.uri, 'database="app"': f'database="{app}"'}
    namespace = {"__name__": "__main__", "spark": spark}
    for block in blocks("docs/spark-pipelines.md"):
        block.run(namespace, replacements)
    assert namespace["shard_of"]("Ada") == "orders16"
    client.drop_database(app)


def test_a_frame_query_that_somebody_stops_ends_the_run(
    spark: Any, start: Any, broker: mongoq.Broker, tmp_path: Path
) -> None:
    run = start(enriching(errors="errors"), checkpoint=tmp_path, available_now=False)
    try:
        [query] = spark.streams.active
        query.stop()
        with pytest.raises(ExecutorError, match="stage 'enrich' at queue 'checked' was stopped, and not by its run"):
            run.wait(PATIENCE)
    finally:
        run.stop()


@pytest.mark.prove
def test_a_second_run_with_frames_leaves_the_first_alone(
    start: Any, broker: mongoq.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(enriching(errors="errors"), checkpoint=tmp_path / "first", available_now=False) as first:
        broker.queue("raw").push({"n": 0})
        while not broker.queue("out").size():  # it has the consumer's name
            assert not first.wait(0.1)
        broker.queue("raw").push_many([{"n": n} for n in range(1, 4)])
        for checkpoint in ("first", "second"):
            with pytest.raises(ConsumerBusy, match="consumer 'enriching/enrich/checked' is busy"):
                start(enriching(), checkpoint=tmp_path / checkpoint, available_now=False)
        deadline = time.monotonic() + PATIENCE
        while broker.queue("out").size() < 3 and time.monotonic() < deadline:
            assert not first.wait(0.1)
    assert broker.queue("out").size() == 3
