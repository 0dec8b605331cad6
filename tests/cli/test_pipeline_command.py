"""Commands ``pipeline …``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click import Group
from click.testing import CliRunner

import mongoq
from tests.cli.conftest import Run
from tests.waiting import until

Queue = mongoq.Queue[Any]

HANDLERS = """
def double(payload, job):
    return payload * 2

async def double_later(payload, job):
    return payload * 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with handlers, and recipes of a pipeline that doubles numbers."""
    (tmp_path / "numbers_of_test.py").write_text(HANDLERS)
    for name, handler in (("plain", "double"), ("coroutine", "double_later"), ("faulty", "missing")):
        stage = {"name": "double", "from": "numbers", "to": "doubles", "handler": f"numbers_of_test:{handler}"}
        (tmp_path / f"{name}.json").write_text(
            json.dumps({"name": "doubling", "outputs": ["doubles"], "stages": [stage]})
        )
    return tmp_path


@pytest.fixture
def start(folder: Path, environment: dict[str, str]) -> Callable[..., subprocess.Popen[str]]:
    """Start a command in the folder of the recipes, where its handlers are imported from."""

    def command(*arguments: str) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        path = os.pathsep.join(filter(None, [str(Path(mongoq.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, **environment, "PYTHONPATH": path}
        # As the console script begins: its own folder is on the path, and the current one is not.
        script = "from mongoq.cli import run; run()"
        words = [sys.executable, "-P", "-c", script, "pipeline", *arguments]
        return subprocess.Popen(words, cwd=folder, env=env, text=True, **pipes)

    return command


@pytest.fixture
def finish_here(
    folder: Path, environment: dict[str, str], command_line: Group, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Run a command in the folder of the recipes, but in this process: to start one takes half a second."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def command(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(command_line, ["pipeline", *arguments], env=environment)
        return result.exit_code, result.stdout, result.stderr

    yield command
    sys.modules.pop("numbers_of_test", None)


Start = Callable[..., subprocess.Popen[str]]
Finish = Callable[..., tuple[int, str, str]]


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate()
    return process.returncode, output, errors


def test_a_recipe_is_checked_and_drawn_without_a_server(finish_here: Finish) -> None:
    assert finish_here("check", "plain.json") == (0, "doubling: ok, 1 stages, 0 sources, 2 queues\n", "")
    code, output, _ = finish_here("draw", "plain.json")
    assert (code, output.startswith("pipeline doubling\n"), "numbers_of_test:double" in output) == (0, True, True)
    code, output, _ = finish_here("draw", "plain.json", "--mermaid")
    assert (code, output.startswith("flowchart")) == (0, True)
    code, output, _ = finish_here("draw", "plain.json", "--mermaid", "--json")
    assert json.loads(output)["mermaid"].startswith("flowchart")


def test_faults_of_a_recipe_are_listed(finish_here: Finish, run: Run, folder: Path) -> None:
    code, output, errors = finish_here("check", "faulty.json")
    assert (code, output) == (1, "")
    assert "stages[0] ('double'): handler: " in errors
    code, output, _ = finish_here("check", "faulty.json", "--json")
    found = json.loads(output)
    assert (code, found["ok"], len(found["faults"])) == (1, False, 1)
    (folder / "broken.json").write_text("{")
    assert run("pipeline", "check", str(folder / "broken.json")).exit_code == 1
    assert run("pipeline", "check", str(folder / "none.json")).exit_code == 2


@pytest.mark.parametrize("recipe", ["plain", "coroutine"])
def test_a_recipe_is_run_until_its_queues_are_empty(finish_here: Finish, broker: mongoq.Broker, recipe: str) -> None:
    broker.queue("numbers").push_many(range(5))
    code, output, errors = finish_here("run", f"{recipe}.json", "--drain", "--json")
    assert code == 0, errors
    (row,) = [json.loads(line) for line in output.splitlines()]
    assert (row["stage"], row["moved"], row["waiting"]) == ("double", 5, 0)
    assert sorted(item.payload for item in broker.queue("doubles").peek(9)) == [0, 2, 4, 6, 8]


@pytest.mark.prove
def test_a_run_ends_in_good_order_on_sigterm(start: Start, broker: mongoq.Broker) -> None:
    process = start("run", "plain.json", "--grace", "5s")
    broker.queue("numbers").push(1)
    until(lambda: broker.queue("doubles").size() == 1)
    process.send_signal(signal.SIGTERM)
    code, output, errors = finish(process)
    assert code == 0, errors
    assert output.split()[:3] == ["stage", "moved", "done"]
    assert broker.queue("numbers").counts().reserved == 0


def test_an_unknown_stage_is_an_error(finish_here: Finish) -> None:
    code, output, errors = finish_here("run", "plain.json", "--drain", "--stage", "none")
    assert (code, output) == (2, "")
    assert "none" in errors
    assert "Traceback" not in errors
