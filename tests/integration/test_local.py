"""What belongs to its process is neither pickled nor copied, and says what to do instead; items travel."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from pymongo import AsyncMongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from mongoq.testing import AsyncVirtualBroker, VirtualBroker

URI = "makes (its|a broker of its) own"


def refuse(what: Any, sentence: str) -> None:
    refused = f"^{type(what).__name__} cannot be pickled or copied: .*{sentence}"
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=refused):
            way(what)
    with pytest.raises(TypeError, match=refused):
        pickle.dumps({"a": [what]})


def test_brokers_queues_and_workers_say_what_to_do_instead(broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    for what in (broker, queue, queue.dead, broker.dead_queue("x.dead"), VirtualBroker(), AsyncVirtualBroker()):
        refuse(what, URI)
    refuse(mongoq.Worker(broker), "register the handlers there")
    refuse(VirtualBroker().worker(), "register the handlers there")
    with broker.transaction() as transaction:
        refuse(transaction, "begins a transaction of its own")
    refuse(EmbeddedServer(), "hand on its uri")


async def test_those_of_asyncio_do_too(uri: str, database: str) -> None:
    client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
    async with client, mongoq.AsyncBroker(client[database]["mongoq"]) as broker:
        refuse(broker, URI)
        refuse(broker.queue("orders"), URI)
        refuse(mongoq.AsyncWorker(broker), "register the handlers there")


def test_a_job_and_a_run_of_a_pipeline_do_too_and_an_item_travels(broker: mongoq.Broker) -> None:
    pipeline = mongoq.Pipeline("shop")
    payloads: list[Any] = []

    @pipeline.sink("orders", max_retries=0)
    def handle(payload: Any, job: mongoq.Job) -> None:
        refuse(job, "hand on job.item")
        payloads.append(pickle.loads(pickle.dumps(job.item)).payload)

    with pipeline.start(broker) as run:
        refuse(run, "makes the pipeline and a broker of its own")
    broker.queue("orders").push("travels")
    pipeline.drain(broker)
    assert payloads == ["travels"]
