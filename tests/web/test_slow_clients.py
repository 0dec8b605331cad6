"""Clients that connect and send half a request, or ask for much and read nothing: others are answered all the while."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from typing import Any

import pytest

import mongoq
from tests.waiting import PATIENCE, until
from tests.web.conftest import Api, Served

PLACES = 8
LARGE = 2_000_000
HALF = b"GET /api/queues HTTP/1.1\r\nHost: 127.0.0.1\r\nA: "


def get(served: Served, path: str) -> tuple[int, bytes]:
    host, port = served.address
    connection = HTTPConnection(host, port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def is_cut_off(client: socket.socket) -> bool:
    """Return whether the server has ended a connection, without reading what it has sent."""
    try:
        client.sendall(b"x")
    except OSError:
        return True
    return False


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def connect(clients: ExitStack) -> Callable[[Served, bytes], socket.socket]:
    def open_one(served: Served, data: bytes) -> socket.socket:
        client = clients.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(served.address)
        client.sendall(data)
        return client

    return open_one


def test_connections_without_a_whole_request_keep_nobody_out(
    *,
    make_app: Callable[..., Any],
    serve_it: Callable[..., Served],
    connect: Callable[[Served, bytes], socket.socket],
    caplog: pytest.LogCaptureFixture,
) -> None:
    served = serve_it(make_app(), max_connections=PLACES)
    for data in (b"", HALF, b"\x16") * 12:
        connect(served, data)
        assert get(served, "/api/queues")[0] == 200
    assert served.count_connections() <= PLACES + 1
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_request_has_to_come_in_time(
    make_app: Callable[..., Any], serve_it: Callable[..., Served], connect: Callable[[Served, bytes], socket.socket]
) -> None:
    served = serve_it(make_app(), patience=5)
    answered = connect(served, HALF + b"1\r\n\r\n")
    assert answered.recv(4_096)
    for client in (connect(served, b""), connect(served, HALF), answered):
        until(partial(is_cut_off, client))  # though it sends a byte now and then
    until(served.is_idle)


def test_answers_that_nobody_reads_are_given_up_and_never_fill_the_memory(
    *,
    make_app: Callable[..., Any],
    serve_it: Callable[..., Served],
    connect: Callable[[Served, bytes], socket.socket],
    broker: mongoq.Broker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("mongoq.web.guard.MAX_UNSENT_BYTES", LARGE)
    path = f"/api/items/{broker.queue('orders').push('x' * LARGE)}"
    served, deaf = serve_it(make_app(), patience=5), list[socket.socket]()

    def is_refused() -> bool:
        deaf.append(connect(served, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()))
        return get(served, path)[0] == 503

    until(is_refused)
    assert get(served, "/api/queues")[0] == 200
    until(lambda: all(map(is_cut_off, deaf)))
    until(served.is_idle)
    status, body = get(served, path)
    assert (status, b"x" * LARGE in body) == (200, True)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_any_server_is_rid_of_an_answer_that_nobody_reads(
    api: Api, broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mongoq.web.guard.READ_SECONDS", 0.2)
    monkeypatch.setattr("mongoq.web.guard.MAX_UNSENT_BYTES", 0)
    path = f"/api/items/{broker.queue('orders').push('x' * LARGE)}"
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 4:  # the beginning, and some pieces
            await asyncio.Event().wait()

    async def ask() -> None:
        scope = {"type": "http", "method": "GET", "scheme": "http", "path": path, "root_path": "", "query_string": b""}
        headers, client = [(b"host", b"127.0.0.1")], ("127.0.0.1", 1)
        await api.app({**scope, "http_version": "1.1", "headers": headers, "client": client}, receive, send)

    api.run(asyncio.wait_for(ask(), PATIENCE))
    assert (sent[0]["status"], len(sent)) == (200, 4)
    assert api.get(path).status_code == 200  # its bytes count no more
