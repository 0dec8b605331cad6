"""What other users of the machine may neither decide nor read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import mongoq
from tests.cli.conftest import Run


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file belong to another user, as far as a command can tell."""
    try:
        os.chown(path, 12345, -1)
    except PermissionError:  # not root: then this user is another one
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


def test_a_project_file_of_another_user_does_not_say_where_a_command_works(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.mongoq]\ncollection = "theirs"\n')
    below = tmp_path / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    assert run("queues").exit_code == 0
    give_away(file, monkeypatch)
    refused = run("queues")
    assert refused.exit_code == 2
    assert f"{file} belongs to another user" in " ".join(refused.stderr.split())
    file.write_text("[project]\nname = 'app'\n")  # it says nothing to mongoq
    assert run("queues").exit_code == 0


def test_nobody_else_can_read_an_export(run: Run, broker: mongoq.Broker, tmp_path: Path) -> None:
    broker.queue("orders").push({"card": "4111"})
    file = tmp_path / "orders.jsonl"
    assert run("export", "orders", "-o", str(file)).exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
