"""Arguments, settings, modules and streams that an attacker or an accident has prepared."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import Result

import mongoq
from mongoq.cli import open_missing_streams
from mongoq.cli.base.confirmation import Confirmation
from mongoq.cli.base.output import Output
from mongoq.cli.main import main
from mongoq.cli.processes.target import Factory, TargetFailed, load

Run = Callable[..., Result]
HOSTILE = "a\nmongoq: all is well\x1b[31m"
"""Name of a queue that would print a line of its own, and colour the terminal."""
DIGITS = "9" * 5_000
"""Number that Python does not convert."""


# --- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["history", "orders", "--limit", "9" * 20],
        ["purge", "orders", "--dry-run", "--limit", "9" * 20],
        ["dead", "list", "orders", "--limit", "9" * 20],
        ["replay", "orders", "--dry-run", "--limit", "9" * 20],
        ["queues", "--budget", "9" * 20],
        ["doctor", "--max-age", "9" * 20],
        ["configure", "orders", "--dry-run", "--max-retries", DIGITS],
        ["worker", "app:worker", "--http", f":{DIGITS}"],
        ["push", "orders", '{"$numberDecimal": "x"}'],
        ["queues", "--uri", "mongodb://[bad", "--database"],
    ],
)
def test_an_argument_that_cannot_be_used_is_a_usage_error(
    run: Run, broker: mongoq.Broker, arguments: list[str]
) -> None:
    broker.queue("orders").push(1)
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["dead", "list", "orders", "--reason", "\udcff"],
        ["dead", "list", "orders", "--error", "\udcff"],
        ["dead", "drop", "orders", "--stage", "\udcff", "--yes"],
        ["queues", "--database", "\udcff"],
        ["queues", "--collection", "\udcff"],
        ["queues", "--uri", "mongodb://[bad"],
    ],
)
def test_text_that_is_no_utf_8_and_a_bad_address_are_named(
    run: Run, broker: mongoq.Broker, arguments: list[str]
) -> None:
    broker.queue("orders").push(1)
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("mongoq: ")


def test_a_line_whose_decimal_means_nothing_is_named(run: Run, broker: mongoq.Broker) -> None:
    result = run("push", "orders", "-", input='1\n{"$numberDecimal": "x"}\n2\n')
    assert result.exit_code == 1
    assert "line 2: " in result.stderr
    assert broker.queue("orders").size() == 1


@pytest.mark.parametrize(
    "option", ["authMechanismProperties=AWS_SESSION_TOKEN:geheim", "tlsCertificateKeyFilePassword=g"]
)
def test_a_secret_option_is_refused_on_the_command_line(run: Run, option: str) -> None:
    result = run("queues", "--uri", f"mongodb://127.0.0.1:1/?{option}")
    assert result.exit_code == 2
    assert "MONGOQ_URI" in result.stderr
    assert "geheim" not in result.stderr


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["push", HOSTILE, "1", "--dry-run"],
        ["push", HOSTILE, "1"],
        ["purge", HOSTILE],
        ["purge", HOSTILE, "--yes"],
        ["pause", HOSTILE, "--yes"],
        ["export", HOSTILE, "--state", "expired"],
        ["dead", "list", HOSTILE],
        ["dead", "move", "orders", "--to", HOSTILE, "--dry-run"],
        ["drop-queue", HOSTILE, "--force", "--yes"],
        ["doctor", "--max-age", "1"],
    ],
)
def test_a_name_of_a_queue_makes_no_line_of_its_own(run: Run, broker: mongoq.Broker, arguments: list[str]) -> None:
    broker.queue(HOSTILE).push(1)
    broker.queue("orders").push(1)
    broker._driver._backend.targets["collection"].update_one(
        {"q": HOSTILE}, [{"$set": {"when": {"$subtract": ["$when", 600_000]}}}]
    )
    broker.close()
    result = run(*arguments)
    assert "\x1b" not in result.output
    assert not [line for line in result.output.splitlines() if line.startswith("mongoq: all is well")]


def test_a_question_and_a_refusal_show_control_characters_by_their_codes(
    monkeypatch: pytest.MonkeyPatch, run: Run, broker: mongoq.Broker
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", lambda text, **_: asked.append(text) or True)
    assert Confirmation(yes=False, dry_run=False).allows(Output(), f"delete {HOSTILE}", count=1)
    assert asked == ["Delete a\\x0amongoq: all is well\\x1b[31m?"]
    broker.queue(HOSTILE).push(1)
    refused = run("purge", HOSTILE)
    assert refused.exit_code == 2
    assert "\\x1b[31m" in refused.stderr


def test_a_name_that_a_shell_would_execute_is_not_completed(
    broker: mongoq.Broker, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("orders", "orders/eu-1", "$(reboot)"[1:], "orders$(reboot)", "orders;ls", "-x", "orders`ls`", "a b"):
        broker.queue(name).push(1)
    broker.stats()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = ShellComplete(main, {}, "mongoq", "_MONGOQ_COMPLETE").get_completions(["peek"], "")
    assert [item.value for item in found] == ["orders", "orders/eu-1"]


# --- pyproject.toml --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "tool = 3",
        "[tool]\nmongoq = 3",
        "[tool]\nmongoq = [1]",
        "x = " + "[" * 5_000,
        '[tool.mongoq]\n"\\u001b[31m" = 1',
    ],
)
def test_a_project_file_that_cannot_be_used_is_named(
    run: Run, environment: dict[str, str], folder: Path, text: str
) -> None:
    environment["MONGOQ_URI"] = ""
    (folder / "pyproject.toml").write_text(text)
    result = run("queues")
    assert result.exit_code == 2
    assert "pyproject.toml" in result.stderr
    assert "\x1b" not in result.stderr


def test_a_deleted_folder_is_no_obstacle(run: Run, environment: dict[str, str], folder: Path) -> None:
    place = folder / "gone"
    place.mkdir()
    os.chdir(place)
    place.rmdir()
    assert run("queues").exit_code == 0
    environment["MONGOQ_URI"] = ""
    assert run("queues").exit_code == 2


# --- modules ---------------------------------------------------------------------------------------

MODULE = """
import mongoq
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_a_property_that_raises_is_reported_without_credentials(folder: Path) -> None:
    (folder / "hostile_shop.py").write_text(MODULE)
    with pytest.raises(TargetFailed) as raised:
        load("hostile_shop:shop.worker")
    assert "mongodb://***@db" in raised.value.message
    assert "geheim" not in raised.value.message


def test_a_function_that_exits_is_reported(folder: Path) -> None:
    def leave() -> Any:
        sys.exit(0)

    async def leave_later() -> Any:
        sys.exit(0)

    with pytest.raises(TargetFailed, match="SystemExit"):
        Factory("app:leave", leave).make()
    with pytest.raises(TargetFailed, match="SystemExit"):
        asyncio.run(Factory("app:leave", leave_later).make_async())
    factory = Factory("app:leave", lambda: leave_later())
    with pytest.raises(TargetFailed, match="SystemExit"):
        asyncio.run(factory.resolve(factory.make()))


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


def test_closed_streams_are_the_null_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    open_missing_streams()
    with sys.stdin as stdin, sys.stdout as stdout, sys.stderr:
        assert stdin.read() == ""
        assert not stdout.isatty()


@pytest.mark.prove
def test_a_command_without_stdin_asks_nobody(environment: dict[str, str], broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    done = shell("mongoq purge orders <&-", environment)
    assert done.returncode == 2
    assert "add --yes" in done.stderr


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


@pytest.mark.parametrize(
    "fields",
    [
        {"origin": {"queue": 5}},
        {"origin": "orders"},
        {"origin": {"queue": 1, "reason": 2, "attempts": "x", "at": 3}},
        {"error": {"type": None, "message": 5, "at": "x", "traceback": [1]}},
        {"error": "card declined"},
        {"error": {"type": "ValueError"}},
    ],
)
def test_a_letter_of_another_program_hides_no_other(
    run: Run, broker: mongoq.Broker, raw: Any, fields: dict[str, Any]
) -> None:
    queue = broker.queue("orders.dead")
    id = queue.push(1)
    queue.push(2)
    raw.update_one({"_id": id}, {"$set": fields})
    for command in (["dead", "list"], ["dead", "show", "--limit", "2"], ["dead", "list", "--group"]):
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
