"""What belongs to its process is neither pickled nor copied, and says what to do instead; items travel."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import AsyncMongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from mongoq.testing import AsyncVirtualBroker, VirtualBroker

WAYS = pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
URI = "makes (its|a broker of its) own"


def refuse(way: Callable[[Any], Any], what: Any, sentence: str) -> None:
    kind = type(what).__name__
    for value in (what, [what], {"a": (what,)}) if way is not copy.copy else (what,):
        with pytest.raises(TypeError, match=f"^{kind} cannot be pickled or copied: .*{sentence}"):
            way(value)


@WAYS
def test_brokers_queues_and_workers_say_what_to_do_instead(way: Any, broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    for what in (broker, queue, queue.dead, broker.dead_queue("x.dead"), VirtualBroker(), AsyncVirtualBroker()):
        refuse(way, what, URI)
    refuse(way, mongoq.Worker(broker), "register the handlers there")
    refuse(way, VirtualBroker().worker(), "register the handlers there")
    with broker.transaction() as transaction:
        refuse(way, transaction, "begins a transaction of its own")
    refuse(way, EmbeddedServer(), "hand on its uri")


@WAYS
async def test_those_of_asyncio_do_too(way: Any, uri: str, database: str) -> None:
    client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
    async with client, mongoq.AsyncBroker(client[database]["mongoq"]) as broker:
        refuse(way, broker, URI)
        refuse(way, broker.queue("orders"), URI)
        refuse(way, mongoq.AsyncWorker(broker), "register the handlers there")


@WAYS
def test_a_job_and_a_run_of_a_pipeline_do_too(way: Any, broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("shop")
    payloads: list[Any] = []

    @pipeline.sink("orders", max_retries=0)
    def handle(payload: Any, job: mongoq.Job) -> None:
        refuse(way, job, "hand on job.item")
        payloads.append(pickle.loads(pickle.dumps(job.item)).payload)

    broker.queue("orders").push("travels")
    with pipeline.start(broker) as run:
        refuse(way, run, "makes the pipeline and a broker of its own")
        while not payloads and broker.queue("orders").size():
            time.sleep(0.01)
    assert payloads == ["travels"]
