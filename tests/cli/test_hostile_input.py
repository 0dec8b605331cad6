"""Arguments, settings, modules and streams that an attacker or an accident has prepared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mongoq
from tests.cli.conftest import Run, RunHere

HOSTILE = "a\nmongoq: all is well\x1b[31m"
"""Name of a queue that would print a line of its own, and colour the terminal."""
DIGITS = "9" * 5_000
"""Number that Python does not convert."""


def test_an_argument_that_cannot_be_used_is_a_usage_error(run: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    for arguments in (
        ["history", "orders", "--limit", "9" * 20],
        ["purge", "orders", "--dry-run", "--limit", "9" * 20],
        ["dead", "list", "orders", "--limit", "9" * 20],
        ["replay", "orders", "--dry-run", "--limit", "9" * 20],
        ["queues", "--budget", "9" * 20],
        ["doctor", "--max-age", "9" * 20],
        ["configure", "orders", "--dry-run", "--max-retries", DIGITS],
        ["worker", "app:worker", "--http", f":{DIGITS}"],
        ["push", "orders", '{"$numberDecimal": "x"}'],
        # Text that is no UTF-8, and bad addresses.
        ["dead", "list", "orders", "--reason", "\udcff"],
        ["dead", "drop", "orders", "--stage", "\udcff", "--yes"],
        ["queues", "--database", "\udcff"],
        ["queues", "--collection", "\udcff"],
        ["queues", "--uri", "mongodb://[bad"],
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert result.stderr.startswith("mongoq: ")


def test_a_line_whose_decimal_means_nothing_is_named(run: Run, broker: mongoq.Broker) -> None:
    result = run("push", "orders", "-", input='1\n{"$numberDecimal": "x"}\n2\n')
    assert result.exit_code == 1
    assert "line 2: " in result.stderr
    assert broker.queue("orders").size() == 1


def test_a_secret_option_is_refused_on_the_command_line(run: Run) -> None:
    for option in ("authMechanismProperties=AWS_SESSION_TOKEN:geheim", "tlsCertificateKeyFilePassword=geheim"):
        result = run("queues", "--uri", f"mongodb://127.0.0.1:1/?{option}")
        assert result.exit_code == 2
        assert "MONGOQ_URI" in result.stderr
        assert "geheim" not in result.stderr


def test_a_name_of_a_queue_makes_no_line_of_its_own(run: Run, broker: mongoq.Broker) -> None:
    for arguments in (
        ["push", HOSTILE, "1", "--dry-run"],
        ["push", HOSTILE, "1"],
        ["purge", HOSTILE],
        ["pause", HOSTILE, "--yes"],
        ["export", HOSTILE, "--state", "expired"],
        ["dead", "list", HOSTILE],
        ["dead", "move", "orders", "--to", HOSTILE, "--dry-run"],
        ["doctor", "--max-age", "1"],
        ["purge", HOSTILE, "--yes"],
        ["drop-queue", HOSTILE, "--force", "--yes"],
    ):
        broker.queue(HOSTILE).push(1, when=datetime.now(UTC) - timedelta(minutes=10))
        broker.queue("orders").push(1)
        result = run(*arguments)
        assert "\x1b" not in result.output
        assert not [line for line in result.output.splitlines() if line.startswith("mongoq: all is well")]
        if arguments == ["purge", HOSTILE]:
            assert "\\x1b[31m" in result.stderr


FORGED = "2026-11-28T10:00:00.000Z INFO    [1] mongoq.audit: 'eve': purge 'orders' (9 items)"
BREAKS = ("\n", "\r", "\r\n", "\v", "\f", "\x1e", "\x85", "\u2028", "\u2029", "\x1b[1E", "\x9b1E")
"""Characters by which one program or another begins a new line."""
FORGERY = "no stock" + "".join(f"{line_break}{FORGED}" for line_break in BREAKS)
RAISING = f"""
class Texts(Exception):
    pass

Texts.__name__ = Texts.__qualname__ = {FORGERY!r}

def refuse(payload):
    if payload == "dead":
        return mongoq.Dead({FORGERY!r}[:500])
    raise (Texts if payload == "class" else ValueError)({FORGERY!r})

def make_refusing(broker: mongoq.Broker):
    worker = mongoq.Worker(broker)
    worker.consumer("orders", max_retries=0)(refuse)
    return worker
"""


def test_an_error_forges_no_line_of_the_log(broker: mongoq.Broker, program_here: RunHere) -> None:
    broker.queue("orders").push_many(["error", "class", "dead"])
    ended = program_here("worker", "app:make_refusing", "--drain", more=RAISING)
    assert len(ended.logged("ValueError: no stock")) == 2, "in the line, and below the traceback"
    assert ended.logged("declared dead")
    assert [line for line in ended.log if re.match("[0-9]{4}-[0-9]{2}-[0-9]{2}T", line)]
    assert_nothing_forged("\n".join(ended.log))


def test_a_failure_forges_no_line_of_a_letter(run: Run, broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders", max_retries=0)
    queue.push({"key": FORGERY, FORGERY: 1}, headers={"h": FORGERY}, key=FORGERY[:500])
    item = queue.reserve()
    assert item is not None
    queue.bury(item, reason=FORGERY[:500], error=ValueError(FORGERY))
    raw.update_one({"_id": item.id}, {"$set": {"error.type": FORGERY, "error.traceback": FORGERY, "by": FORGERY}})
    for arguments in ("show ID", "dead show orders --id ID", "dead list orders", "peek orders.dead"):
        result = run(*arguments.replace("ID", str(item.id)).split())
        assert result.exit_code == 0, arguments
        assert "no stock" in result.stdout
        assert_nothing_forged(result.output)
    raw.update_one({"_id": item.id}, {"$set": {"error.at": FORGERY}})
    assert_nothing_forged(run("show", str(item.id)).output)


def assert_nothing_forged(text: str) -> None:
    """Assert that no line of a text begins with the forged one, whatever begins a line, and that no character moves."""
    assert not [line for line in text.splitlines() if line.startswith(FORGED)]
    assert not [character for character in text if not (character.isprintable() or character in "\n\t")]


# --- pyproject.toml --------------------------------------------------------------------------------


def test_a_project_file_that_cannot_be_used_is_named(
    run: Run, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment["MONGOQ_URI"] = ""
    nested = "x = " + "[" * 5_000
    for text in ("tool = 3", "[tool]\nmongoq = 3", "[tool]\nmongoq = [1]", nested, '[tool.mongoq]\n"\\u001b[31m" = 1'):
        (tmp_path / "pyproject.toml").write_text(text)
        result = run("queues")
        assert result.exit_code == 2
        assert "pyproject.toml" in result.stderr
        assert "\x1b" not in result.stderr


# --- modules ---------------------------------------------------------------------------------------

MODULE = """
import sys

class Shop:
    @property
    def worker(self):
        raise ValueError("mongodb://ada:geheim@db")

shop = Shop()

def leave():
    raise SystemExit(0)

async def leave_later():
    raise SystemExit(0)
"""


def test_a_property_that_raises_and_a_function_that_exits_are_reported(program_here: RunHere) -> None:
    for target, problem in (
        ("app:shop.worker", "mongodb://***@db"),
        ("app:leave", "SystemExit"),
        ("app:leave_later", "SystemExit"),
    ):
        ended = program_here("worker", target, more=MODULE)
        assert ended.code == 1
        assert problem in "\n".join(ended.log)
        assert not ended.logged("geheim@")


# --- streams ---------------------------------------------------------------------------------------


def shell(command: str, environment: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command.replace("mongoq", f"{sys.executable} -m mongoq")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.mark.prove
def test_a_command_without_stdin_asks_nobody(environment: dict[str, str], broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    done = shell("mongoq purge orders <&-", environment)
    assert done.returncode == 2
    assert "add --yes" in done.stderr


@pytest.mark.prove
@pytest.mark.prove
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_said_in_one_line(environment: dict[str, str], broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    done = shell("mongoq peek orders --json > /dev/full", environment)
    assert done.returncode == 1
    assert done.stderr == "mongoq: No space left on device\n"


@pytest.mark.prove
def test_a_reader_that_goes_away_ends_no_push(environment: dict[str, str], broker: mongoq.Broker) -> None:
    feed = f"""{sys.executable} -c 'for n in range(3): print("[" + "1," * 600000 + str(n) + "]")'"""
    done = shell(f"{feed} | mongoq push orders - | head -n 1", environment)
    assert "pushed 3 items to orders" in done.stderr
    assert broker.queue("orders").size() == 3


# --- documents -------------------------------------------------------------------------------------


def test_a_letter_of_another_program_hides_no_other(run: Run, broker: mongoq.Broker, raw: Any) -> None:
    queue = broker.queue("orders.dead")
    queue.push(2)
    for fields in (
        {"origin": {"queue": 5}},
        {"origin": "orders"},
        {"origin": {"queue": 1, "reason": 2, "attempts": "x", "at": 3}},
        {"error": {"type": None, "message": 5, "at": "x", "traceback": [1]}},
        {"error": "card declined"},
        {"error": {"type": "ValueError"}},
    ):
        raw.update_one({"_id": queue.push(1)}, {"$set": fields})
    for command in (["dead", "list"], ["dead", "show", "--limit", "9"], ["dead", "list", "--group"]):
        for form in ([], ["--json"]):
            assert run(*command, "orders.dead", *form).exit_code == 0


def test_a_dry_import_refuses_a_history_that_the_queue_does_not_keep(run: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").configure(history=60)
    queue = broker.queue("orders")
    queue.push(1)
    queue.pop()
    lines = run("export", "orders", "--history").stdout
    for form in (["--dry-run"], []):
        refused = run("import", "others", *form, input=lines)
        assert refused.exit_code == 2
        assert "keeps no history" in refused.stderr
    assert run("import", "orders", "--dry-run", input=lines).exit_code == 0


def test_a_dry_push_counts_no_item_whose_key_is_taken(run: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1, key="a")
    assert run("push", "orders", "2", "--key", "a", "--dry-run").stdout == "would push 0 items to orders\n"
    assert run("push", "orders", "2", "--key", "b", "--dry-run").stdout == "would push 1 item to orders\n"
    assert broker.queue("orders").size() == 1
