"""The server of probes: its answers, and clients that mean no good."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

import mongoq
from mongoq.monitoring import HealthServer
from tests.waiting import until

HOST = "127.0.0.1"
healths = [mongoq.Health(healthy=True)]


def ready() -> mongoq.Health:
    return healths[-1]


@pytest.fixture
def probes() -> Iterator[HealthServer]:
    healths[:] = [mongoq.Health(healthy=True)]
    with HealthServer(HOST, 0, ready) as running:
        yield running


def ask(server: HealthServer, path: str, method: str = "GET", **options: Any) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection(HOST, server.port, timeout=30)
    try:
        connection.request(method, path, **options)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def talk(server: HealthServer, data: bytes) -> bytes:
    """Send raw bytes, and return everything that the server sends until it closes the connection."""
    with socket.create_connection((HOST, server.port), timeout=30) as client:
        client.sendall(data)
        answer = b""
        try:
            while more := client.recv(65536):
                answer += more
        except ConnectionResetError:
            pass
        return answer


def test_a_process_that_answers_works(probes: HealthServer) -> None:
    healths.append(mongoq.Health.of(["it stops"]))
    status, headers, body = ask(probes, "/healthz")
    assert (status, headers["Content-Type"], json.loads(body)["healthy"]) == (200, "application/json", True)


def test_readiness_follows_the_check(probes: HealthServer) -> None:
    assert ask(probes, "/readyz?verbose=1")[0] == 200
    healths.append(mongoq.Health.of(["the worker stops"], ["a note"]))
    status, _, body = ask(probes, "/readyz")
    assert status == 503
    assert json.loads(body) == {"healthy": False, "reasons": ["the worker stops"], "notes": ["a note"]}


def test_head_has_no_body(probes: HealthServer) -> None:
    status, headers, body = ask(probes, "/readyz", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 0


@pytest.mark.parametrize("method", ["POST", "BREW"])
def test_another_method_is_refused(probes: HealthServer, method: str) -> None:
    status, headers, _ = ask(probes, "/readyz", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_an_unknown_path_is_not_found(probes: HealthServer) -> None:
    for path in ("/", "/metrics", "/healthz/", "/../etc/passwd", "/%68ealthz"):
        assert ask(probes, path)[0] == 404, path


def test_a_check_that_fails_is_not_ready(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> mongoq.Health:
        raise ValueError("secret")

    with caplog.at_level(logging.WARNING, "mongoq.health"), HealthServer(HOST, 0, broken) as server:
        status, _, body = ask(server, "/readyz")
        assert (status, json.loads(body)["reasons"]) == (503, ["the check itself has failed: ValueError"])
        assert ask(server, "/healthz")[0] == 200
    assert "secret" not in caplog.text + body.decode()


def test_metrics_are_served_as_text() -> None:
    with HealthServer(HOST, 0, ready, lambda: b"up 1\n") as server:
        status, headers, body = ask(server, "/metrics")
    assert (status, body) == (200, b"up 1\n")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")


def test_metrics_that_fail_are_an_error_without_its_text() -> None:
    def broken() -> bytes:
        raise ValueError("secret")

    with HealthServer(HOST, 0, ready, broken) as server:
        status, _, body = ask(server, "/metrics")
    assert (status, b"secret" in body) == (500, False)


def test_a_page_of_another_site_reads_nothing_of_this_machine(probes: HealthServer) -> None:
    """A site can give its own name the address of this machine; no browser takes an address or localhost for a site."""
    for host, status in (
        *((f"127.0.0.1:{probes.port}", 200), ("LocalHost", 200), ("[::1]:80", 200), ("10.0.0.7:80", 200)),
        *(("evil.example", 403), ("127.0.0.1.evil.example:80", 403), ("localhost.evil.example", 403)),
        *(("[", 403), ("", 403), ("a@localhost", 403)),
    ):
        answer = talk(probes, f"GET /readyz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert answer.split()[1] == str(status).encode(), (host, answer)
    assert b" 200 " in talk(probes, b"GET /healthz HTTP/1.0\r\n\r\n")
    with HealthServer("0.0.0.0", 0, ready) as public:  # as Prometheus and a kubelet call it
        assert ask(public, "/readyz", headers={"Host": "exporter.monitoring.svc"})[0] == 200


def test_an_answer_tells_no_versions(probes: HealthServer) -> None:
    assert ask(probes, "/healthz")[1]["Server"] == "mongoq"


@pytest.mark.parametrize(
    "request_bytes, status",
    [
        (b"GET /healthz HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n", b" 431 "),
        (b"GET /healthz HTTP/1.1\r\n" + b"A: x\r\n" * 300 + b"\r\n", b" 431 "),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b" 414 "),
        (b"\x16\x03\x01\x02\x00\x01\x00\n\n", b"400 "),
        (b"GET http://[ HTTP/1.0\r\n\r\n", b" 404 "),
        (b"GET /healthz HTTP/9.9\r\n\r\n", b"505 "),
    ],
    ids=["large header", "many headers", "long path", "TLS", "bad URL", "version"],
)
def test_a_hostile_request_is_refused_and_the_server_goes_on(
    probes: HealthServer, request_bytes: bytes, status: bytes
) -> None:
    assert status in talk(probes, request_bytes)
    assert ask(probes, "/healthz")[0] == 200


@pytest.mark.prove
def test_a_client_that_says_nothing_is_cut_off(probes: HealthServer) -> None:
    assert talk(probes, b"GET /heal") == b""
    assert ask(probes, "/healthz")[0] == 200


@pytest.mark.prove
def test_a_client_that_sends_a_byte_now_and_then_is_cut_off(probes: HealthServer) -> None:
    with socket.create_connection((HOST, probes.port), timeout=0.2) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\n")

        def is_cut_off() -> bool:
            try:
                client.sendall(b"A")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        until(is_cut_off)
    assert ask(probes, "/healthz")[0] == 200


def test_silent_connections_keep_no_probe_out(probes: HealthServer) -> None:
    with contextlib.ExitStack() as silent:
        for data in [b"", b"GET /heal"] * 32:
            client = silent.enter_context(socket.create_connection((HOST, probes.port), timeout=30))
            client.sendall(data)
        for path in ("/healthz", "/readyz") * 4:
            assert ask(probes, path)[0] == 200


def test_checks_that_hang_keep_no_probe_out() -> None:
    goes_on, begun = threading.Event(), list[None]()

    def hang() -> mongoq.Health:
        begun.append(None)
        goes_on.wait(60)
        return mongoq.Health(healthy=True)

    with HealthServer(HOST, 0, hang) as server, contextlib.ExitStack() as waiting:
        for _ in range(40):
            client = waiting.enter_context(socket.create_connection((HOST, server.port), timeout=30))
            client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        until(lambda: len(begun) == 16)
        assert ask(server, "/readyz")[0] == 503
        assert ask(server, "/healthz")[0] == 200
        goes_on.set()
        until(lambda: ask(server, "/readyz")[0] == 200)


def test_a_stopped_server_leaves_nothing_and_can_be_started_again() -> None:
    server = HealthServer(HOST, 0, ready).start()
    port = server.port
    with socket.create_connection((HOST, port), timeout=30) as client:
        client.sendall(b"GET ")
        server.stop()
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            pass
    server.stop()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "mongoq-http"])
    with pytest.raises(OSError):
        socket.create_connection((HOST, port), timeout=5)
    with server:
        assert ask(server, "/healthz")[0] == 200
        with pytest.raises(mongoq.ArgumentInvalid, match="already"):
            server.start()


def test_a_port_that_is_in_use_is_an_error_that_names_it(probes: HealthServer) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=f"{HOST}:{probes.port}"):
        HealthServer(HOST, probes.port, ready).start()


@pytest.mark.parametrize(
    "arguments, name",
    [
        (("", 80, ready), "host"),
        ((HOST, 65_536, ready), "port"),
        ((HOST, 80, None), "ready"),
        ((HOST, 80, ready, 1), "metrics"),
    ],
)
def test_bad_arguments_are_named(arguments: Any, name: str) -> None:
    with pytest.raises(mongoq.ArgumentInvalid, match=name):
        HealthServer(*arguments)


def test_a_worker_answers_probes(broker: mongoq.Broker) -> None:
    answers: list[Any] = []
    worker = mongoq.Worker(broker)

    @worker.consumer("orders")
    def handle(payload: Any) -> None:
        answers.append(ask(server, "/readyz")[0])
        worker.stop()
        answers.append(ask(server, "/readyz")[0])

    broker.queue("orders").push(1)
    with HealthServer(HOST, 0, worker.health) as server:
        worker.run()
        status, _, body = ask(server, "/readyz")
    assert answers == [200, 503]
    assert (status, json.loads(body)["reasons"]) == (503, ["the worker does not run"])
