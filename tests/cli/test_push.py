"""Command ``push``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId

import mongoq
from tests.cli.conftest import Read, Run
from tests.proxy import Proxy


def test_an_item_is_pushed_with_its_options(run: Run, broker: mongoq.Broker) -> None:
    payload = '{"id": {"$oid": "65f0c0ffee65f0c0ffee0001"}, "at": {"$date": "2026-01-02T03:04:05.678Z"}}'
    options = ["--when", "2030-01-01T00:00:00Z", "--priority", "-3", "--key", "k", "--header", "tenant=a=b"]
    result = run("push", "orders", payload, *options)
    assert result.exit_code == 0
    assert result.stderr == f"pushed 1 item to orders, a new queue in {broker.namespace}\n"
    (item,) = broker.queue("orders").peek(state="scheduled")
    assert result.stdout == f"{item.id}\n"
    at = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    assert item.payload == {"id": ObjectId("65f0c0ffee65f0c0ffee0001"), "at": at}
    due = datetime(2030, 1, 1, tzinfo=UTC)
    assert (item.due, item.priority, item.key, item.headers) == (due, -3, "k", {"tenant": "a=b"})
    assert "a new queue" not in run("push", "orders", "1", "--delay", "5m").stderr
    assert broker.queue("orders").size("scheduled") == 2


def test_a_taken_key_pushes_nothing(run: Run, read: Read, broker: mongoq.Broker) -> None:
    id = broker.queue("orders").push(1, key="k")
    result = run("push", "orders", "2", "--key", "k")
    assert (result.exit_code, result.stdout) == (0, f"{id}\n")
    assert "pushed nothing" in result.stderr
    assert read("push", "orders", "2", "--key", "k")[0]["pushed"] is False
    assert [item.payload for item in broker.queue("orders").peek(9)] == [1]


def test_lines_are_pushed_in_their_order_and_their_ids_printed(run: Run, broker: mongoq.Broker) -> None:
    lines = '{"n": 1}\r\n\n  \n{"n": {"$numberLong": "2"}}\n"ü"'.encode()
    result = run("push", "orders", "-", "--priority", "5", input=lines)
    items = broker.queue("orders").peek(9)
    assert [item.payload for item in items] == [{"n": 1}, {"n": 2}, "ü"]
    assert {item.priority for item in items} == {5}
    assert result.stdout.split() == [str(item.id) for item in items]
    assert result.stderr == f"pushed 3 items to orders, a new queue in {broker.namespace}\n"
    assert run("push", "orders", input="4\n").exit_code == 0
    assert broker.queue("orders").size() == 4


def test_lines_print_documents(run: Run, broker: mongoq.Broker) -> None:
    result = run("push", "orders", "-", "--json", input="1\n\n2\n")
    first, second = (str(item.id) for item in broker.queue("orders").peek(9))
    assert result.stdout == f'{{"id": "{first}", "line": 1}}\n{{"id": "{second}", "line": 3}}\n'


def test_a_bad_line_is_named_and_the_lines_before_it_are_pushed(run: Run, broker: mongoq.Broker) -> None:
    orders = broker.queue("orders")
    for bad, problem in (
        ('{"n": }', "line 4: not valid JSON: Expecting value at column 7"),
        ('{"n": {"$oid": "x"}}', "line 4: extended JSON that means no value"),
        ('{"n": 123456789012345678901}', "line 4: payload.n"),
        (r'{"n": "\ud800"}', "line 4: payload.n"),
        ("\udcff", "line 4: "),
    ):
        text = f"1\n\n2\n{bad}\n5\n".encode(errors="surrogateescape")
        result = run("push", "orders", "-", input=text)
        assert result.exit_code == 1
        assert problem in result.stderr
        assert result.stderr.endswith("2 items before it were pushed\n")
        assert result.stderr.count("\n") == 1
        items = orders.peek(9)
        assert [item.payload for item in items] == [1, 2]
        assert result.stdout.split() == [str(item.id) for item in items]
        orders.purge()


def test_a_dry_run_checks_all_and_pushes_nothing(run: Run, read: Read, broker: mongoq.Broker) -> None:
    assert read("push", "orders", "1", "--dry-run") == [
        {"would": f"push 1 item to orders, a new queue in {broker.namespace}", "count": 1, "new_queue": True}
    ]
    result = run("push", "orders", "-", "--dry-run", input="1\n2\n")
    assert (result.exit_code, result.stdout) == (
        0,
        f"would push 2 items to orders, a new queue in {broker.namespace}\n",
    )
    result = run("push", "orders", "-", "--dry-run", input="1\n\n123456789012345678901\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "line 3" in result.stderr
    assert "1 item before it could be pushed" in result.stderr
    assert broker.queues() == []


def test_bad_arguments_push_nothing(run: Run, broker: mongoq.Broker) -> None:
    for arguments in (
        ["orders", "1", "--header", "x"],
        ["orders", "1", "--header", "x=1", "--header", "x=2"],
        ["orders", "1", "--delay", "soon"],
        ["orders", "1", "--delay", "9" * 12 + "d"],
        ["orders", "-", "--key", "k"],
        ["orders", "-", "--priority", "200"],
        ["orders", "1", "--key", ""],
        ["orders", "1", "--delay", "5m", "--when", "2030-01-01"],
        ["orders", "123456789012345678901"],
        ["orders", "123456789012345678901", "--dry-run"],
    ):
        result = run("push", *arguments, input="1\n")
        assert result.exit_code == 2, arguments
        assert result.stderr
    assert broker.queues() == []


@pytest.mark.prove
def test_lines_of_a_slow_writer_are_pushed_as_they_come(environment: dict[str, str], broker: mongoq.Broker) -> None:
    command = [sys.executable, "-m", "mongoq", "push", "orders", "-"]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env={**os.environ, **environment}, text=True, bufsize=1, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ids = []
        for lines in ("1\n2\n", "3\n"):
            process.stdin.write(lines)
            # An id is printed once its item is pushed.
            ids += [process.stdout.readline().strip() for _ in lines.split()]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert ids == [str(item.id) for item in broker.queue("orders").peek(9)]
    assert "stopped; 3 items before it were pushed, up to line 3" in errors
    assert "Traceback" not in errors


def test_a_lost_server_says_what_is_known(
    run: Run, environment: dict[str, str], lossy: tuple[Proxy, Any], broker: mongoq.Broker
) -> None:
    proxy, _ = lossy
    assert run("push", "orders", "0").exit_code == 0
    environment["MONGOQ_URI"] = proxy.uri_with(retryWrites="false")
    proxy.lose("request", "insert", times=99)
    proxy.lose("request", "update", times=99)
    result = run("push", "orders", "-", input="1\n2\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "0 items pushed; of lines 1 to 2, 2 may be missing" in result.stderr


def test_a_push_to_a_topic_is_no_new_queue(run: Run, broker: mongoq.Broker) -> None:
    broker.bind("news", "mails")
    assert "a new queue" not in run("push", "news", "1").stderr
    assert "a new queue" not in run("push", "mails", "1", "--dry-run").stdout
    assert broker.queue("mails").size() == 1
    result = run("import", "news", input="")
    assert (result.exit_code, "'mails'" in result.stderr) == (1, True)


def test_an_item_that_must_start_in_time(run: Run, read: Read, broker: mongoq.Broker) -> None:
    assert run("push", "orders", "1", "--expires", "10m").exit_code == 0
    assert run("push", "orders", "-", "--expires", "10m", input="2\n3\n").exit_code == 0
    items = broker.queue("orders").peek(9)
    assert [item.payload for item in items if item.start_by is not None] == [1, 2, 3]
    assert [row["start_by"] for row in read("peek", "orders")] == [
        row["start_by"] for item in items for row in read("show", str(item.id))
    ]
    assert "start by" in run("peek", "orders").stdout
    late = run("push", "orders", "4", "--expires", "1m", "--delay", "2m")
    assert late.exit_code != 0
    assert "could never start" in late.stderr
    assert run("push", "orders", "4", "--expires", "0").exit_code != 0
    assert broker.queue("orders").size() == 3


def test_items_are_pushed_into_a_sequence(run: Run, broker: mongoq.Broker) -> None:
    assert run("push", "orders", "1", "--sequence", "customer-17").exit_code == 0
    assert run("push", "orders", "-", "--sequence", "customer-17", input="2\n3\n").exit_code == 0
    orders = broker.queue("orders")
    assert [(item.payload, item.sequence) for item in orders.peek()] == [(1, "customer-17")]
    assert [item.payload for item in orders.peek(9, state="blocked")] == [2, 3]


def test_a_sequence_that_cannot_be_used_pushes_nothing(run: Run, broker: mongoq.Broker) -> None:
    for options, problem in (
        (["--sequence", ""], "sequence: cannot be empty"),
        (["--sequence", "x" * 1025], "sequence"),
        (["--sequence", "a", "--key", "k"], "give --sequence or --key"),
        (["--sequence", "a", "--expires", "0"], "expires"),
    ):
        for value in (["1"], ["-"], ["1", "--dry-run"], ["-", "--dry-run"]):
            result = run("push", "orders", *value, *options, input="1\n")
            assert (result.exit_code != 0, result.stdout) == (True, "")
            assert problem in result.stderr
    assert broker.queue("orders").size() == 0
