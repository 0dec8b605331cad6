"""Rights of app and worker, as docs/deployment.md gives them: on a server with authentication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from mongoq.embedded import EmbeddedServer
from tests.examples.shop_processes import APP, WORKER, ShopProcess
from tests.restricted import create_user, uri_of
from tests.waiting import until

pytestmark = pytest.mark.slow

DATABASE = "shop"
ORDER_ACTIONS = ["find", "insert", "update"]


@pytest.fixture(scope="module")
def auth_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(auth=("root", "root")) as server, MongoClient[Any](server.uri) as admin:
        orders = {"resource": {"db": DATABASE, "collection": "orders"}, "actions": ORDER_ACTIONS}
        admin[DATABASE].command("createRole", "orders", privileges=[orders], roles=[])
        for role in ("producer", "worker"):
            create_user(admin, DATABASE, role)
            admin[DATABASE].command("grantRolesToUser", role, roles=["orders"])
        yield server


@pytest.fixture
def start(auth_server: EmbeddedServer) -> Iterator[Any]:
    started: list[ShopProcess] = []

    def start(command: list[str], user: str, **environment: str) -> ShopProcess:
        uri = uri_of(auth_server, DATABASE, user)
        started.append(ShopProcess(command, {"MONGOQ_URI": uri, "MONGOQ_DATABASE": DATABASE, **environment}))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.mark.prove
def test_a_producer_is_refused_until_a_worker_has_made_the_indexes_and_then_works(start: Any) -> None:
    app = start(APP, "producer")
    with pytest.raises(AssertionError, match="the database cannot be used"):
        app.place()
    worker = start(WORKER, "worker")
    worker.wait_until_ready()
    [id] = app.place()
    until(lambda: app.answer(f"/orders/{id}")["state"] == "shipped")
    app.wait_until_answered("/readyz")
    until(lambda: "mongoq_up 1.0" in app.get("/metrics/").text)
    for process in (app, worker):
        process.terminate()
        assert process.end() == 0, process.log
        assert not [line for line in process.log if "producer:producer" in line or "worker:worker@" in line]
