"""Progress of commands that search or count: what they say, and that only a terminal shows it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import mongoq
from mongoq.cli.base import progress
from mongoq.cli.base.progress import Meter
from mongoq.protocol.history import search

Run = Callable[..., Result]

ITEMS = 60
NOWHERE = '{"n": -1}'
SEARCHES = [
    ["peek", "orders", "--state", "reserved"],
    ["peek", "orders", "--state", "expired"],
    ["history", "orders", "--where", NOWHERE],
    ["dead", "list", "orders", "--reason", "none"],
    ["dead", "list", "orders", "--error", "NoError"],
    ["dead", "show", "orders", "--where", NOWHERE],
    ["export", "orders", "--where", NOWHERE],
    ["export", "orders", "--state", "reserved"],
]
COUNTS = [
    ["purge", "orders", "--where", NOWHERE, "--dry-run"],
    ["purge", "orders", "--state", "expired", "--dry-run"],
    ["dead", "replay", "orders", "--reason", "none", "--dry-run"],
    ["dead", "drop", "orders", "--where", NOWHERE, "--dry-run"],
    ["replay", "orders", "--where", NOWHERE, "--yes"],
    ["configure", "orders", "--history", "1d", "--existing", "--dry-run"],
]


@pytest.fixture
def orders(broker: mongoq.Broker, monkeypatch: pytest.MonkeyPatch) -> mongoq.Queue[Any]:
    """A queue with ready, scheduled, processed and dead items, which are searched in slices of 20."""
    queue = broker.queue("orders", history=3600, max_retries=0)
    for _ in range(2):
        queue.push_many({"n": n} for n in range(ITEMS))
    for item in queue.reserve_many(ITEMS):
        queue.bury(item, reason="slow")
    queue.commit_many(queue.reserve_many(ITEMS))
    queue.push_many({"n": n} for n in range(ITEMS))
    queue.push_many(({"n": n} for n in range(ITEMS)), delay=3600)
    monkeypatch.setattr(search, "SLICE", 20)
    monkeypatch.setattr(search, "FIRST_SLICE", 20)
    return queue


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts of progress, as a terminal would get them."""
    texts: list[str] = []
    monkeypatch.setattr(Meter, "show", lambda _meter, text: texts.append(text))
    return texts


@pytest.mark.parametrize("command", SEARCHES, ids=" ".join)
def test_a_search_shows_how_many_items_it_has_searched(
    run: Run, orders: mongoq.Queue[Any], shown: list[str], command: list[str]
) -> None:
    result = run(*command)
    assert result.exit_code == (command[:2] == ["dead", "show"])
    numbers = [int(text.split()[-3]) if "items searched" in text else int(text.split()[-2]) for text in shown]
    assert numbers == sorted(numbers)
    assert numbers[:3] == [20, 40, 60]


@pytest.mark.parametrize("command", COUNTS, ids=" ".join)
def test_a_count_shows_how_many_items_it_has_examined(
    run: Run, orders: mongoq.Queue[Any], shown: list[str], command: list[str]
) -> None:
    result = run(*command)
    assert result.exit_code == 0, result.output
    assert shown[:4] == ["counting …", "20 items examined", "40 items examined", "60 items examined"]


@pytest.mark.prove
def test_only_a_terminal_shows_progress(
    orders: mongoq.Queue[Any], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "mongoq", "export", "orders", "--output", str(tmp_path / "items")]
    place = {**os.environ, **environment}
    terminal, end = pty.openpty()
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        ended = subprocess.run(
            command, check=False, env=place, stdout=subprocess.PIPE, stderr=end, cwd=tmp_path, timeout=120
        )
        os.close(end)
        drawn = screen.read(10_000).decode()
    assert (ended.returncode, ended.stdout) == (0, b"")
    # The line of progress is erased before the result.
    assert "items written" in drawn
    assert drawn.rstrip().rpartition("\r")[2].startswith(f"exported {2 * ITEMS} items")


def test_a_meter_is_erased_before_a_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Meter() as meter:
        meter.count("searched")(1_000)
        meter.clear()
        print("a row", file=sys.stderr)
    assert capsys.readouterr().err == "\r1,000 items searched\r" + " " * 20 + "\ra row\n"
