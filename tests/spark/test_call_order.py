"""What Spark calls in which order, in which process: the streams of mongoq are built on it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.spark.queries import start_query
from tests.spark.recording import MOST, Recording

pytestmark = pytest.mark.prove


@dataclass(frozen=True)
class Call:
    process: int
    instance: int
    name: str
    arguments: list[Any]

    @property
    def text(self) -> str:
        return " ".join(map(str, [self.name, *self.arguments]))


class Log:
    """The calls since it was asked last."""

    def __init__(self, home: Path) -> None:
        self.path = home / "calls"
        self.path.touch()
        self.seen = 0

    def lines(self) -> int:
        return len(self.path.read_text().splitlines())

    def calls(self) -> list[Call]:
        lines = self.path.read_text().splitlines()
        new, self.seen = lines[self.seen :], len(lines)
        return [Call(process, instance, name, rest) for process, instance, name, *rest in map(json.loads, new)]

    def driver(self) -> list[str]:
        """Calls on the driver, those that repeat listed once; tasks run in any order."""
        return [text for text, _ in groupby(call.text for call in self.calls() if call.name != "read")]


class Recorded:
    """Queries on the recording source, with one checkpoint."""

    def __init__(self, spark: Any, home: Path) -> None:
        spark.dataSource.register(Recording)
        self.spark, self.home, self.log = spark, home, Log(home)
        self.fails = False
        self.started: list[Any] = []

    def rows(self, number: int) -> None:
        (self.home / "rows").write_text(str(number))

    def start(self, *, trigger: dict[str, Any] | None = None, reads: int = 1, **options: str) -> Any:
        def collect(frame: Any, _: int) -> None:
            for _ in range(reads):
                frame.collect()
            if self.fails:
                raise RuntimeError("not today")

        stream = self.spark.readStream.format("recording").options(path=str(self.home), **options).load()
        writer = stream.writeStream.foreachBatch(collect).option("checkpointLocation", str(self.home / "checkpoint"))
        self.started.append(start_query(writer.trigger(**trigger) if trigger else writer))
        return self.started[-1]

    def finish(self, **options: Any) -> list[str]:
        """Run with ``AvailableNow`` to its end, and return the calls on the driver."""
        query = self.start(trigger={"availableNow": True}, **options)
        if self.fails:
            with pytest.raises(Exception, match="not today"):
                query.awaitTermination(60)
        else:
            assert query.awaitTermination(60)
        return [text for text in self.log.driver() if text != "stop"]


@pytest.fixture
def recorded(spark: Any, tmp_path: Path) -> Iterator[Recorded]:
    recorded = Recorded(spark, tmp_path)
    yield recorded
    for query in recorded.started:
        query.stop()


FIRST = ["prepareForTriggerAvailableNow", "initialOffset", "latestOffset 0 ReadMaxRows", "initialOffset"]


def test_available_now_ends_by_asking_once_more_and_without_the_last_commit(recorded: Recorded) -> None:
    recorded.rows(3)
    assert recorded.finish() == [
        *FIRST,
        "partitions 0 2",
        "latestOffset 2 ReadMaxRows",
        "commit 2",
        "partitions 2 3",
        "latestOffset 3 ReadMaxRows",
    ]
    assert recorded.finish() == ["prepareForTriggerAvailableNow", "latestOffset 3 ReadMaxRows"]


def test_a_batch_that_failed_is_planned_again_before_anything_else_is_asked(recorded: Recorded) -> None:
    recorded.rows(2 * MOST)
    recorded.fails = True
    assert recorded.finish() == [*FIRST, "partitions 0 2"]
    again = ["prepareForTriggerAvailableNow", "initialOffset", "partitions 0 2"]
    assert recorded.finish() == again
    recorded.fails = False
    rest = ["latestOffset 2 ReadMaxRows", "commit 2", "partitions 2 4", "latestOffset 4 ReadMaxRows"]
    assert recorded.finish() == [*again, *rest]


def test_the_default_trigger_asks_again_and_again_and_commits_when_the_next_batch_is_planned(
    recorded: Recorded,
) -> None:
    recorded.rows(1)
    query = recorded.start()
    query.processAllAvailable()
    calls = recorded.log.driver()
    assert calls == [
        "initialOffset",
        "latestOffset 0 ReadMaxRows",
        "initialOffset",
        "partitions 0 1",
        "latestOffset 1 ReadMaxRows",
    ]
    idle = recorded.log.lines()
    _until(lambda: recorded.log.lines() > idle + 10)
    assert recorded.log.driver() == ["latestOffset 1 ReadMaxRows"]
    recorded.rows(2)
    query.processAllAvailable()
    assert recorded.log.driver() == [
        "latestOffset 1 ReadMaxRows",
        "commit 1",
        "partitions 1 2",
        "latestOffset 2 ReadMaxRows",
    ]
    query.stop()
    assert recorded.log.driver() in ([], ["latestOffset 2 ReadMaxRows"])  # nothing that says it is the end


def test_available_now_ends_after_one_batch_of_a_reader_that_does_not_know_it(recorded: Recorded) -> None:
    recorded.rows(2 * MOST)
    assert recorded.finish(knows="") == [
        "initialOffset",
        "latestOffset 0 ReadAllAvailable",
        "initialOffset",
        "partitions 0 2",
    ]


def test_the_trigger_once_reads_all_and_settles_nothing(recorded: Recorded) -> None:
    recorded.rows(1)
    assert recorded.start(trigger={"once": True}).awaitTermination(60)
    calls = [text for text in recorded.log.driver() if text != "stop"]
    assert calls == ["initialOffset", "latestOffset 0 ReadAllAvailable", "initialOffset", "partitions 0 1"]


def test_what_reads_is_in_other_processes_and_reads_for_each_action(recorded: Recorded) -> None:
    recorded.rows(1)
    query = recorded.start(trigger={"availableNow": True}, reads=2)
    assert query.awaitTermination(60)
    calls = recorded.log.calls()
    planning = {call.process for call in calls if call.name not in ("read", "stop")}
    assert len(planning) == 1
    assert not planning & {call.process for call in calls if call.name == "read"}
    assert [call.text for call in calls if call.name == "read"] == ["read 0", "read 0"]
    [process] = planning
    _until(lambda: not Path(f"/proc/{process}").exists())  # it ends with the query


def _until(fulfilled: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if fulfilled():
            return
        time.sleep(0.03)
    raise AssertionError("it did not come to that")
