"""Outputs of frame stages in sequences: that of their input, or one by a function of the payload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mongoq
from tests.spark.frame_station import Frames

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def frames(spark: Any, store: Any, tmp_path: Path) -> Iterator[Frames]:
    frames = Frames(spark, store, tmp_path)
    yield frames
    for query in frames.started:
        query.stop()
    frames.broker.close()


def arrivals(frames: Frames, name: str = "out") -> dict[Any, list[Any]]:
    """Return the numbers of the items that a queue hands out, by their sequences, and take them out."""
    queue, found = frames.broker.queue(name), dict[Any, list[Any]]()
    while items := queue.reserve_many(100):
        for item in items:
            found.setdefault(item.sequence, []).append(item.payload["n"])
        queue.commit_many(items)
    return found


def left_over(frames: Frames) -> list[dict[str, Any]]:
    """Return what is left of sequences: control documents, and items with a place."""
    return list(
        frames.store.collection.find({"$or": [{"_id": {"$regex": "^sequence:"}}, {"place": {"$exists": True}}]})
    )


def work_off(frames: Frames, pipeline: mongoq.Pipeline) -> dict[str, int]:
    """Run until the queue is empty: of each sequence a frame has one item."""
    total: dict[str, int] = {}
    while frames.documents("checked"):
        for ending, number in frames.worked_off(pipeline).items():
            total[ending] = total.get(ending, 0) + number
    return total


@pytest.mark.prove
def test_items_of_a_sequence_go_on_in_their_order(frames: Frames) -> None:
    names = ["a", "b", None]
    frames.broker.queue("checked").push_many([{"n": n} for n in range(9)], sequences=[names[n % 3] for n in range(9)])
    pipeline = frames.pipeline(outputs="out")

    @pipeline.frame_stage("checked", to="out", schema="n int", sequence="keep")
    def work(numbers: Any) -> Any:
        return numbers.withColumn("half", numbers["n"] / 2)

    assert work_off(frames, pipeline) == {"moved": 9}
    found = arrivals(frames)
    assert sorted(found.pop(None)) == [2, 5, 8]
    assert found == {"a": [0, 3, 6], "b": [1, 4, 7]}
    assert left_over(frames) == []


def test_an_output_stays_in_no_sequence_unless_its_stage_says_so(frames: Frames) -> None:
    frames.broker.queue("checked").push({"n": 1}, sequence="a")
    pipeline = frames.pipeline(outputs="out")
    pipeline.frame_stage("checked", to="out", schema="n int", name="work")(lambda numbers: numbers)
    assert frames.worked_off(pipeline) == {"moved": 1}
    assert arrivals(frames) == {None: [1]}


@pytest.mark.prove
@pytest.mark.parametrize("columns", ["made", "kept", "fork"])
def test_a_function_of_the_payload_chooses_the_sequence(frames: Frames, columns: str) -> None:
    customers = ["ann", "bob", "free"]
    frames.push(*({"n": n, "who": {"name": customers[n % 3]}} for n in range(6)))
    pipeline = frames.pipeline(outputs="out")

    def customer(payload: Any) -> str | None:
        assert type(payload) is dict
        name = payload["who"]["name"]
        return None if name == "free" else name

    @pipeline.frame_stage("checked", to="out", schema="n int, who struct<name:string>", sequence=customer)
    def work(rows: Any) -> Any:
        if columns == "kept":
            return rows.select("_id")
        return rows if columns == "made" else rows.union(rows)

    assert frames.worked_off(pipeline) == {"moved": 6}
    times = 2 if columns == "fork" else 1
    found = {name: sorted(numbers) for name, numbers in arrivals(frames).items()}
    assert found == {"ann": [0, 3], "bob": [1, 4], None: [2, 5]} if times == 1 else {
        "ann": [0, 0, 3, 3], "bob": [1, 1, 4, 4], None: [2, 2, 5, 5],
    }  # fmt: skip
    assert left_over(frames) == []


@pytest.mark.prove
def test_a_column_of_the_returned_frame_goes_before_the_stage(frames: Frames) -> None:
    from pyspark.sql import functions as f

    frames.broker.queue("checked").push_many([{"n": n} for n in range(4)], sequences=["a", "b", "c", "d"])
    pipeline = frames.pipeline(outputs="out")
    names = f.when(f.col("n") == 0, "own").when(f.col("n") == 1, "x" * 1_025).when(f.col("n") == 2, f.col("_sequence"))

    @pipeline.frame_stage("checked", to="out", schema="n int, _sequence string", sequence="keep", max_retries=0)
    def work(numbers: Any) -> Any:
        return numbers.withColumn("_sequence", names)

    assert frames.worked_off(pipeline) == {"moved": 3, "dead": 1}
    assert arrivals(frames) == {"own": [0], "c": [2], "d": [3]}
    [dead] = frames.documents("errors")
    assert "column _sequence: " in dead["error"]["message"]


@pytest.mark.prove
def test_a_function_that_fails_for_an_output_fails_its_item_alone(frames: Frames) -> None:
    frames.push({"n": 1}, {"n": 2}, {"n": 3})
    pipeline = frames.pipeline(outputs="out")

    def choose(payload: Any) -> Any:
        if payload["n"] == 1:
            raise KeyError("customer")
        return "a" if payload["n"] == 2 else "x" * 2_000

    @pipeline.frame_stage("checked", to="out", schema="n int", sequence=choose, max_retries=0)
    def work(numbers: Any) -> Any:
        return numbers

    assert frames.worked_off(pipeline) == {"moved": 1, "dead": 2}
    assert arrivals(frames) == {"a": [2]}
    reasons = sorted(each["error"]["message"] for each in frames.documents("errors"))
    assert "its sequence= raised KeyError" in reasons[1]
    assert "1 to 1,024 bytes" in reasons[0]


@pytest.mark.prove
def test_a_recipe_gives_a_frame_stage_its_sequence(frames: Frames) -> None:
    stage = {"from": "checked", "to": "out", "handler": f"{__name__}:same", "frame": {"schema": "n int"}}
    recipe = {"name": "flights", "errors": "errors", "outputs": "out", "stages": [{**stage, "sequence": "keep"}]}
    frames.broker.queue("checked").push({"n": 1}, sequence="a")
    assert frames.worked_off(mongoq.Pipeline.from_recipe(recipe)) == {"moved": 1}
    assert arrivals(frames) == {"a": [1]}


def same(numbers: Any) -> Any:
    return numbers
