"""``mongoq dashboard``: the pages and the HTTP API, served until a signal comes."""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import mongoq
from tests.cli.conftest import Run
from tests.cli.programs import Program
from tests.waiting import until

Start = Callable[..., Program]


def open_address(program: Program, path: str = "", **headers: str) -> tuple[int, str]:
    def address() -> str | None:
        lines = program.logged(" served at ")
        return lines[0].rpartition(" ")[2] if lines else None

    until(lambda: address() or program.process.poll() is not None)
    place = address()
    assert place is not None, program.log
    try:
        with urllib.request.urlopen(urllib.request.Request(place + path, headers=headers), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.prove
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_shows_queues_until_a_signal_comes(program: Start, broker: mongoq.Broker, number: signal.Signals) -> None:
    broker.queue("orders").push(1)
    command = program("dashboard", "--http", ":0")
    status, page = open_address(command)
    assert (status, "orders" in page, "read-only" in page) == (200, True, True)
    assert open_address(command, "api/queues")[0] == 200
    command.process.send_signal(number)
    assert command.end() == 0


@pytest.mark.prove
def test_users_may_look_from_elsewhere(program: Start, tmp_path: Path, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    users = tmp_path / "users.txt"
    users.write_text("ada:read:a-secret-of-ada\n")
    command = program("dashboard", "--http", ":0", "--users", str(users))
    assert open_address(command)[0] == 401
    assert open_address(command, Authorization="Bearer a-secret-of-ada")[0] == 200
    command.process.send_signal(signal.SIGTERM)
    assert command.end() == 0
    assert "a-secret" not in command.log


def test_changes_need_the_link_that_it_prints(program: Start, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    command = program("dashboard", "--http", ":0", "--act")
    assert "read-only" in open_address(command)[1]
    until(lambda: command.lines)
    [place] = [line.rpartition(" ")[2] for line in command.lines if "/link?token=" in line]
    pause = b"action=pause&queue=orders&confirmed=1"
    change = urllib.request.Request(place.partition("link?")[0] + "change", pause)
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # it keeps cookies
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        browser.open(change, timeout=30)
    refused.value.close()
    with browser.open(place, timeout=30) as page:
        assert b"read-only" not in page.read()
    with browser.open(change, timeout=30) as done:
        assert done.status == 200
    assert broker.queue("orders").is_paused()
    token = place.partition("token=")[2]
    assert token not in " ".join(psutil.Process(command.process.pid).cmdline())
    command.process.send_signal(signal.SIGTERM)
    assert command.end() == 0
    assert token not in "".join(command.log)


@pytest.mark.prove
def test_a_prefix_stands_before_all_addresses(program: Start, tmp_path: Path, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    users = tmp_path / "users.txt"
    users.write_text("ada:read:a-secret-of-ada\n")
    options = ("--root-path", "/ops/queues", "--origin", "https://example.com", "--users", str(users))
    command = program("dashboard", "--http", ":0", *options)
    status, page = open_address(command, Authorization="Bearer a-secret-of-ada")
    assert (status, 'href="/ops/queues/queue?name=orders"' in page) == (200, True)
    command.process.send_signal(signal.SIGTERM)
    assert command.end() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--http", "0.0.0.0:0"], 2, "name the users"),
        (["--http", "example.invalid:0"], 2, "name the users"),
        (["--http", ":x"], 2, "no port"),
        (["--users", "none.txt"], 2, "none.txt cannot be read"),
        (["--http", ":0", "--nonsense"], 2, "No such option"),
        (["--root-path", "/queues"], 2, "name the users"),
        (["--origin", "https://example.com"], 2, "name the users"),
    ],
    ids=range(7),
)
def test_what_cannot_be_served_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, text: str
) -> None:
    # A dashboard that serves all the same would not end.
    monkeypatch.setattr("mongoq.web.server.serve", lambda *_: pytest.fail("it is served"))
    result = run("dashboard", *arguments)
    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr
