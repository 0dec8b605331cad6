"""``mongoq dashboard``: the pages and the HTTP API, served until a signal comes."""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

import mongoq
from tests.cli.conftest import Run, Start
from tests.cli.programs import Program
from tests.waiting import until


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
def test_users_may_look_from_elsewhere_and_below_a_prefix(
    program: Start, tmp_path: Path, broker: mongoq.Broker
) -> None:
    broker.queue("orders").push(1)
    users = tmp_path / "users.txt"
    users.write_text("ada:read:a-secret-of-ada\n")
    options = ("--root-path", "/ops/queues", "--origin", "https://example.com", "--users", str(users))
    command = program("dashboard", "--http", ":0", *options)
    assert open_address(command)[0] == 401
    status, page = open_address(command, Authorization="Bearer a-secret-of-ada")
    assert (status, 'href="/ops/queues/queue?name=orders"' in page) == (200, True)
    command.process.send_signal(signal.SIGTERM)
    assert command.end() == 0
    assert "a-secret" not in "".join(command.log)


def test_changes_need_the_link_that_it_prints(program: Start, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    command = program("dashboard", "--http", ":0", "--act")
    status, page = open_address(command)
    assert (status, "orders" in page, "read-only" in page) == (200, True, True)
    assert open_address(command, "api/queues")[0] == 200
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


def test_what_cannot_be_served_is_an_error(run: Run) -> None:
    for arguments, text in (
        (["--http", "0.0.0.0:0"], "name the users"),
        (["--http", "example.invalid:0"], "name the users"),
        (["--http", ":x"], "no port"),
        (["--users", "none.txt"], "none.txt cannot be read"),
        (["--http", ":0", "--nonsense"], "No such option"),
        (["--root-path", "/queues"], "name the users"),
        (["--origin", "https://example.com"], "name the users"),
    ):
        result = run("dashboard", *arguments)
        assert (result.exit_code, text in result.stderr) == (2, True), result.stderr
