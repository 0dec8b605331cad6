"""Context variables that the user names travel in headers, and are set around the handler."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from opentelemetry import trace

import mongoq
import mongoq.telemetry
from mongoq.testing import VirtualBroker
from tests.telemetry.conftest import KINDS, Telemetry, drain, fitting

TENANT: ContextVar[Any] = ContextVar("tenant", default="nobody")
LOCALE: ContextVar[Any] = ContextVar("locale")
HEADER = "mongoq-context-tenant"


@pytest.fixture(autouse=True)
def _no_tenant() -> Iterator[None]:
    token = TENANT.set("nobody")
    yield
    TENANT.reset(token)


def push_as(queue: mongoq.Queue[Any], tenant: Any, payload: Any, **options: Any) -> None:
    token = TENANT.set(tenant)
    queue.push(payload, **options)
    TENANT.reset(token)


@pytest.mark.parametrize("kind", KINDS)
def test_variables_are_set_around_the_handler_as_they_were_at_the_push(
    kind: str, uri: str, database: str, broker: mongoq.Broker
) -> None:
    mongoq.telemetry.instrument(broker, context_variables=[TENANT, LOCALE])
    values: list[Any] = ["acme", {"id": 7, "names": ["ä", None]}, None, True]
    for number, value in enumerate(values):
        push_as(broker.queue("orders"), value, number)
    seen: dict[int, Any] = {}

    def handle(payload: int) -> None:
        seen[payload] = TENANT.get(), LOCALE.get("unset")
        TENANT.set("changed by a handler")

    def instrument(own: Any) -> None:
        mongoq.telemetry.instrument(own, context_variables=[TENANT, LOCALE])

    drain(kind, uri, database, instrument, lambda w: w.consumer("orders")(fitting(kind, handle)))
    assert seen == {number: (value, "unset") for number, value in enumerate(values)}
    assert TENANT.get() == "nobody"


def test_a_batch_has_those_that_all_its_items_agree_on(broker: mongoq.Broker) -> None:
    mongoq.telemetry.instrument(broker, context_variables=[TENANT, LOCALE])
    token = LOCALE.set("de")
    push_as(broker.queue("orders"), "acme", 1)
    push_as(broker.queue("orders"), "other", 2)
    LOCALE.reset(token)
    seen: list[Any] = []
    worker = mongoq.Worker(broker)
    worker.consumer("orders", batch=10)(lambda payloads: seen.append((payloads, TENANT.get(), LOCALE.get("unset"))))
    worker.run(drain=True)
    assert seen == [([1, 2], "nobody", "de")]


def test_a_header_of_the_producer_is_not_changed(broker: mongoq.Broker) -> None:
    mongoq.telemetry.instrument(broker, context_variables=[TENANT])
    push_as(broker.queue("orders"), "acme", 1, headers={HEADER: '"mine"', "traceparent": "x"})
    [item] = broker.queue("orders").peek()
    assert item.headers == {HEADER: '"mine"', "traceparent": "x"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x" * 1024, "1,0[0-9]+ bytes, and 1,024 of max_context_bytes"),
        (object(), "no JSON \\(TypeError\\)"),
        ("\ud800", "no JSON \\(UnicodeEncodeError\\)"),
    ],
)
def test_a_value_that_cannot_travel_is_left_out_with_one_warning(
    value: Any, words: str, broker: mongoq.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    mongoq.telemetry.instrument(broker, context_variables=[TENANT, LOCALE])
    token = LOCALE.set("de")
    with caplog.at_level(logging.WARNING, "mongoq.telemetry"):
        push_as(broker.queue("orders"), value, 1)
        push_as(broker.queue("orders"), value, 2)
    LOCALE.reset(token)
    assert [dict(item.headers) for item in broker.queue("orders").peek(2)] == [{"mongoq-context-locale": '"de"'}] * 2
    [record] = [record for record in caplog.records if record.name == "mongoq.telemetry"]
    assert record.message.startswith("context variable 'tenant' does not travel with items: ")
    assert re.search(words, record.message)


def test_the_limit_is_for_all_of_them_together(broker: mongoq.Broker) -> None:
    size = len(HEADER) + len('"acme"')
    token = LOCALE.set("de")
    for limit, expected in ((size, {HEADER}), (size - 1, {"mongoq-context-locale"}), (0, set())):
        mongoq.telemetry.instrument(broker, context_variables=[TENANT, LOCALE], max_context_bytes=limit)
        push_as(broker.queue("orders"), "acme", 1)
        item = broker.queue("orders").pop()
        assert item is not None
        assert set(item.headers) == expected
    LOCALE.reset(token)


def test_a_hostile_header_leaves_the_variable_as_it_is(telemetry: Telemetry) -> None:
    hostile: list[Any] = [7, b"x", "{", "[" * 1000, '"' + "x" * 2000 + '"', "NaN1", ["a"], None]
    seen: list[Any] = []
    with VirtualBroker() as virtual:
        telemetry.instrument(virtual, context_variables=[TENANT])
        worker = mongoq.Worker(virtual)
        worker.consumer("orders")(lambda payload: seen.append((payload, TENANT.get())))
        for number, value in enumerate(hostile):
            virtual.queue("orders").push(number, headers={HEADER: value})
        virtual.worker(worker).run_until_idle()
    assert seen == [(number, "nobody") for number in range(len(hostile))]


def test_everything_is_set_back_behind_the_call(broker: mongoq.Broker, telemetry: Telemetry) -> None:
    shop = mongoq.Pipeline("shop", errors="shop.errors")
    seen: list[Any] = []

    def look() -> None:
        seen.append((TENANT.get(), trace.get_current_span().get_span_context().is_valid))

    @shop.around
    @contextlib.contextmanager
    def outer(job: mongoq.Job) -> Iterator[None]:
        yield
        look()

    telemetry.instrument(shop, context_variables=[TENANT])
    shop.sink("orders")(lambda order: look())
    broker.queue("orders").push(1, headers={HEADER: '"acme"'})
    shop.drain(broker)
    assert seen == [("acme", True), ("nobody", False)]


def test_what_is_no_variable_is_refused(broker: mongoq.Broker) -> None:
    wrong: list[Any] = [TENANT, "tenant", 7, ["tenant"], [TENANT, ContextVar("tenant")]]
    for variables in wrong:
        with pytest.raises(mongoq.ArgumentInvalid, match="context_variables"):
            mongoq.telemetry.instrument(broker, context_variables=variables)
    for limit in (-1, 1.5, None, True):
        with pytest.raises(mongoq.ArgumentInvalid, match="max_context_bytes"):
            mongoq.telemetry.instrument(broker, max_context_bytes=limit)  # type: ignore[arg-type]
    push_as(broker.queue("orders"), "acme", 1)
    assert [dict(item.headers) for item in broker.queue("orders").peek()] == [{}]
