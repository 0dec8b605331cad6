"""A worker whose handlers fork.

``forking.py URI DATABASE KIND WAY`` drains the queue; children end as ``WAY`` says. Prints a line for each run that has
begun, with the number of its process, and one for each child that has ended, with its exit code.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Iterator
from typing import Any

import mongoq

CODE = 3


def say(*words: object) -> None:
    """Print a line at once: a child would print what its parent has not written yet as well."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def begin(payload: Any) -> int:
    say("began", payload, os.getpid())
    return os.fork()


def end_child(way: str) -> Any:
    if way == "exit":
        sys.exit(CODE)
    if way == "raise":
        raise ValueError("a child's")
    return mongoq.Dead("a child's") if way == "return" else None


def run_process() -> Any:
    """Run a process of ``multiprocessing`` to its end."""
    process = multiprocessing.get_context("fork").Process(target=sys.exit, args=(CODE,))
    process.start()
    process.join()
    return process


def wait_for(child: int) -> None:
    _, status = os.waitpid(child, 0)
    say("child", os.waitstatus_to_exitcode(status))


def main(uri: str, database: str, kind: str, way: str) -> None:
    def plain(payload: Any) -> Any:
        if way == "process":
            say("began", payload, os.getpid())
            process = run_process()
            say("child", process.exitcode)
            return None
        child = begin(payload)
        if child == 0:
            return end_child(way)
        wait_for(child)
        return None

    async def task(payload: Any) -> Any:
        child = begin(payload)
        if child == 0:
            if way == "wait":
                await asyncio.sleep(0)
            return end_child(way)
        wait_for(child)
        return None

    async def work() -> None:
        async with mongoq.connect_async(uri, database=database) as broker:
            worker = mongoq.AsyncWorker(broker)
            worker.consumer("orders")(task if kind == "tasks" else plain)
            await worker.run(drain=True)

    if kind in ("tasks", "plain"):
        asyncio.run(work())
    elif kind == "threads":
        with mongoq.connect(uri, database=database) as broker:
            worker = mongoq.Worker(broker)
            worker.consumer("orders")(plain)
            worker.run(drain=True)
    else:
        drain_source(uri, database, way)
    say("ended", os.getpid())


def drain_source(uri: str, database: str, way: str) -> None:
    """Run a source that forks, whose records nobody takes; its children go on yielding, or end."""
    pipeline = mongoq.Pipeline("forking", outputs="made")

    @pipeline.source(to="made")
    def rows(position: int | None) -> Iterator[mongoq.Record]:
        for number in range(position or 0, 4):
            child = begin(number)
            if child == 0:
                end_child(way)
            else:
                wait_for(child)
            yield mongoq.Record(number, position=number + 1)

    with mongoq.connect(uri, database=database) as broker:
        pipeline.drain(broker)


if __name__ == "__main__":
    main(*sys.argv[1:])
