"""Scalers of KEDA: the query is run on a server, and examines what docs/deployment.md says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from bson import json_util
from pymongo import MongoClient
from pymongo.errors import OperationFailure

import mongoq
from examples.shop.orders import QUEUE
from mongoq.embedded import EmbeddedServer
from mongoq.monitoring.prometheus import PrometheusMetrics
from mongoq.testing import VirtualBroker
from tests.examples.test_shop_deployment import KUBERNETES

COUNT = {"$group": {"_id": 1, "n": {"$sum": 1}}}
"""What a driver's ``countDocuments`` adds to its filter."""
LIMIT = 1000


def read_trigger(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the specification of a ScaledObject, and the metadata of its trigger."""
    documents = yaml.safe_load_all((KUBERNETES / name).read_text())
    [scaled] = [document for document in documents if document["kind"] == "ScaledObject"]
    [trigger] = scaled["spec"]["triggers"]
    return scaled["spec"], trigger["metadata"]


def read_command(name: str) -> dict[str, Any]:
    command: dict[str, Any] = json_util.loads((KUBERNETES / name).read_text())
    return command


@pytest.fixture
def backlog(client: MongoClient[Any], database: str, broker: mongoq.Broker) -> str:
    """The name of the view, beside a queue and its neighbour."""
    broker.queue("other").push_many(range(50))
    broker.queue(QUEUE).push_many(range(5))
    client[database].command(read_command("keda-view.json"))
    return str(read_trigger("keda-mongodb.yaml")[1]["collection"])


def count(client: MongoClient[Any], database: str, view: str) -> int:
    query = json_util.loads(read_trigger("keda-mongodb.yaml")[1]["query"])
    return client[database][view].count_documents(query)


def explain(client: MongoClient[Any], database: str, collection: str, query: dict[str, Any]) -> Any:
    pipeline = [{"$match": query}, COUNT]
    command = {"aggregate": collection, "pipeline": pipeline, "cursor": {}}
    return client[database].command("explain", command, verbosity="executionStats")


def find_all(value: Any, name: str) -> Iterator[Any]:
    """Return all values of a field, at any depth."""
    if isinstance(value, dict):
        if name in value:
            yield value[name]
        for each in value.values():
            yield from find_all(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from find_all(each, name)


def test_the_view_counts_what_is_due_and_what_runs(
    client: MongoClient[Any], database: str, broker: mongoq.Broker, backlog: str
) -> None:
    queue = broker.queue(QUEUE)
    assert count(client, database, backlog) == 5
    queue.push("later", delay=3600)
    assert count(client, database, backlog) == 5
    queue.reserve_many(2)
    assert count(client, database, backlog) == 5
    item = queue.reserve()
    assert item is not None
    queue.commit(item)
    assert count(client, database, backlog) == 4


def test_the_count_examines_two_thousand_items_at_most(
    client: MongoClient[Any], database: str, broker: mongoq.Broker, backlog: str
) -> None:
    queue = broker.queue(QUEUE)
    queue.push_many(range(5000))
    queue.push_many(range(3000), priority=5)
    queue.push_many(range(4000), delay=3600)
    assert count(client, database, backlog) == LIMIT
    plan = explain(client, database, backlog, json_util.loads(read_trigger("keda-mongodb.yaml")[1]["query"]))
    assert set(find_all(plan, "indexName")) == {"mongoq1_claim"}
    assert "COLLSCAN" not in set(find_all(plan, "stage"))
    examined = list(find_all(plan, "totalDocsExamined"))
    keys = list(find_all(plan, "totalKeysExamined"))
    assert len(examined) == len(keys) == 2
    assert sum(examined) == 2 * LIMIT
    assert sum(keys) == 2 * LIMIT + 1  # one step from one priority to the next


def test_the_limit_of_the_view_is_enough_for_all_workers() -> None:
    spec, metadata = read_trigger("keda-mongodb.yaml")
    assert int(metadata["queryValue"]) * spec["maxReplicaCount"] <= LIMIT
    assert list(find_all(read_command("keda-view.json"), "$limit")) == [LIMIT, LIMIT]


@pytest.mark.slow
def test_the_user_of_keda_reads_the_view_and_nothing_else() -> None:
    with EmbeddedServer(auth=("root", "root")) as server, MongoClient[Any](server.uri) as admin:
        shop = admin["shop"]
        with mongoq.Broker(shop["mongoq"]) as broker:
            broker.queue(QUEUE).push_many(range(5))
        shop.command(read_command("keda-view.json"))
        shop.command(read_command("keda-role.json"))
        shop.command("createUser", "keda", pwd="keda", roles=["shop-keda"])
        place = server.uri.rpartition("@")[2].replace("authSource=admin", "authSource=shop")
        with MongoClient[Any](f"mongodb://keda:keda@{place}") as keda:
            assert count(keda, "shop", "to_ship_backlog") == 5
            with pytest.raises(OperationFailure, match="not authorized"):
                keda["shop"]["mongoq"].count_documents({})


# --- Prometheus ----------------------------------------------------------------------------------


def test_the_query_for_prometheus_names_metrics_and_labels_that_exist() -> None:
    _, metadata = read_trigger("keda-prometheus.yaml")
    query = metadata["query"]
    with VirtualBroker() as broker:
        broker.queue(QUEUE).push(1)
        families = PrometheusMetrics(broker).registry.collect()
        samples = [sample for family in families for sample in family.samples]
    states = {one.labels["state"] for one in samples if one.name == "mongoq_items"}
    names = set(re.findall(r"mongoq_\w+", query))
    assert names == {"mongoq_items", "mongoq_up"}
    assert names <= {sample.name for sample in samples}
    assert f'queue="{QUEUE}"' in query
    [wanted] = re.findall(r'state=~"([^"]*)"', query)
    assert set(wanted.split("|")) == states - {"scheduled", "blocked"}  # the others can run now
    assert metadata["ignoreNullValues"] == "false"
