"""``examples.shop`` as it is deployed: app and worker are processes, which stop on the first SIGTERM."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import mongoq
from examples.shop.orders import QUEUE
from examples.shop.settings import Settings, SettingsInvalid
from tests.examples.carrier import GateCarrier, serve_carrier
from tests.examples.shop_processes import APP, ROOT, UVICORN, WORKER, ShopProcess
from tests.waiting import until

Start = Callable[..., ShopProcess]
IN_APP = {"SHOP_WORKER_IN_APP": "1"}


@pytest.fixture
def carrier() -> Iterator[GateCarrier]:
    with serve_carrier() as served:
        yield served


@pytest.fixture
def start(own_uri: str, carrier: GateCarrier) -> Iterator[Start]:
    """Start a process of the shop, on the test's own database and carrier."""
    started: list[ShopProcess] = []

    def start(command: Sequence[str], **environment: str) -> ShopProcess:
        place = {"MONGOQ_URI": own_uri, "SHOP_CARRIER": carrier.url, "SHOP_GRACE": "100"}
        started.append(ShopProcess(command, {**place, **environment}))
        return started[-1]

    yield start
    for process in started:
        process.close()


def states(client: Any, database: str) -> list[str]:
    return sorted(order["state"] for order in client[database]["orders"].find())


def begin(app: ShopProcess, carrier: GateCarrier, number: int) -> None:
    """Place orders, more than the worker runs at a time, and wait until its handlers call the carrier."""
    carrier.gate.clear()
    app.place(number)
    until(lambda: len(carrier.calls) == 4)


# --- where the worker runs -----------------------------------------------------------------------


def test_a_worker_in_its_own_process_ships_the_order(start: Start, client: Any, database: str) -> None:
    app, worker = start(APP), start(WORKER)
    [id] = app.place()
    until(lambda: app.answer(f"/orders/{id}")["state"] == "shipped")
    assert {process.end() for process in (app, worker) if process.terminate() is None} == {0}


@pytest.mark.prove
@pytest.mark.parametrize("command", [APP, UVICORN], ids=["program", "uvicorn"])
def test_a_worker_in_the_lifespan_ships_the_order(start: Start, carrier: GateCarrier, command: list[str]) -> None:
    app = start(command, **IN_APP)
    [id] = app.place()
    until(lambda: app.answer(f"/orders/{id}")["state"] == "shipped")
    assert [order for order, _ in carrier.calls] == [id]


@pytest.mark.prove
def test_an_order_that_the_server_refuses_leaves_no_job(
    start: Start, client: Any, database: str, broker: mongoq.Broker
) -> None:
    client[database].create_collection("orders", validator={"customer": {"$ne": "Ada"}})
    app = start(APP)
    with pytest.raises(AssertionError, match="the database cannot be used"):
        app.place()
    assert states(client, database) == []
    assert broker.queue(QUEUE).size() == 0


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.prove
def test_the_program_ends_on_the_first_sigterm_with_its_worker_drained(
    start: Start, carrier: GateCarrier, broker: mongoq.Broker, client: Any, database: str
) -> None:
    app = start(APP, **IN_APP)
    begin(app, carrier, 7)
    app.wait_until_answered("/healthz", "/readyz")
    app.terminate()
    app.wait_until_stopping()
    assert app.status("/healthz") == 200  # a restart by the liveness probe would kill the handlers
    until(lambda: broker.queue(QUEUE).counts().reserved == 4)
    carrier.gate.set()
    assert app.end() == 0, app.log
    assert len(carrier.calls) == 4
    check_drained(broker, states(client, database), done=4, waiting=3)
    assert not [line for line in app.log if "Traceback" in line or "ERROR" in line], app.log


@pytest.mark.prove
def test_the_worker_process_ends_on_the_first_sigterm_and_is_not_ready_meanwhile(
    start: Start, carrier: GateCarrier, broker: mongoq.Broker, client: Any, database: str
) -> None:
    app, worker = start(APP), start(WORKER)
    begin(app, carrier, 7)
    worker.wait_until_ready()
    worker.terminate()
    worker.wait_until_stopping()
    assert worker.status("/healthz") == 200
    until(lambda: broker.queue(QUEUE).counts().reserved == 4)
    carrier.gate.set()
    assert worker.end() == 0
    check_drained(broker, states(client, database), done=4, waiting=3)


@pytest.mark.prove
def test_the_second_sigterm_gives_back_the_running_items(
    start: Start, carrier: GateCarrier, broker: mongoq.Broker, client: Any, database: str
) -> None:
    app = start(APP, **IN_APP)
    begin(app, carrier, 5)
    app.terminate()
    app.wait_until_stopping()
    app.terminate()
    assert app.end() == 0
    check_drained(broker, states(client, database), done=0, waiting=5)


def check_drained(broker: mongoq.Broker, orders: list[str], *, done: int, waiting: int) -> None:
    """Check that so many orders were shipped, and the others wait as if they had never been reserved."""
    assert orders == ["ordered"] * waiting + ["shipped"] * done
    counts = broker.queue(QUEUE).counts()
    assert (counts.ready + counts.scheduled, counts.reserved, counts.expired) == (waiting, 0, 0)
    assert [item.attempts for item in broker.queue(QUEUE).peek(10, state=None)] == [0] * waiting


# --- health and metrics --------------------------------------------------------------------------


@pytest.mark.prove
def test_the_metrics_have_the_queue_and_the_runs_of_the_worker(start: Start, carrier: GateCarrier) -> None:
    app = start(APP, **IN_APP)
    [id] = app.place()
    until(lambda: app.answer(f"/orders/{id}")["state"] == "shipped")

    def runs() -> float | None:
        return read(app).get(("mongoq_process_duration_seconds_count", (("outcome", "done"), ("queue", QUEUE))))

    until(lambda: runs() == 1)
    until(lambda: read(app)[("mongoq_up", ())] == 1)
    # A queue that is empty again is known by its counters, which are written every five seconds.
    until(lambda: ("mongoq_items", (("queue", QUEUE), ("state", "ready"))) in read(app))
    assert app.get("/metrics").headers["location"].endswith("/metrics/")  # docs/deployment.md says so


def read(app: ShopProcess) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(app.get("/metrics/").text)
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"MONGOQ_URI": "mongodb://u:secret@h/", "SHOP_WORKER_IN_APP": "secret"},
        {"MONGOQ_URI": "mongodb://u:secret@h/", "SHOP_GRACE": "secret"},
        {"MONGOQ_URI": "mongodb://u:secret@h/", "SHOP_GRACE": "-1"},
        {"MONGOQ_URI": "mongodb://u:secret@h/", "SHOP_PORT": "70000"},
    ],
    ids=["no uri", "switch", "grace", "negative grace", "port"],
)
def test_a_bad_setting_is_named_without_its_value(environment: dict[str, str]) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        Settings.from_environment(environment)
    assert (list(environment) or ["MONGOQ_URI"])[-1] in str(caught.value)
    assert "secret" not in str(caught.value)


def test_settings_do_not_show_credentials() -> None:
    settings = Settings.from_environment({"MONGOQ_URI": "mongodb://u:secret@h/", "SHOP_CARRIER": "http://u:secret@h"})
    assert "secret" not in repr(settings)


def test_the_program_says_in_one_line_what_is_missing() -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MONGOQ_", "SHOP_"))}
    done = subprocess.run(APP, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    message = "MONGOQ_URI is missing: set it to the connection string of your MongoDB\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
