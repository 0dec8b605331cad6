"""What a new outcome, a new setting of a queue or a new operation needs: the lists of CONTRIBUTING, as tests.

Branches of code that tell outcomes apart are checked by the type checkers (``make_unknown_error``).
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

import mongoq
from mongoq.cli.main import main
from mongoq.monitoring import durations
from mongoq.telemetry.threads.operations import observe_operations
from mongoq.testing import VirtualBroker
from mongoq.web.models import Configure
from tests.restricted import OPERATIONS

DOCS = {path.name: path.read_text() for path in (Path(__file__).parents[2] / "docs").glob("*.md")}
GUIDES = "\n".join(text for name, text in DOCS.items() if name not in ("architecture.md", "benchmarks.md"))
SETTINGS = [field.name for field in fields(mongoq.QueueSettings) if field.name != "name"]
OUTCOMES: tuple[type[Any], ...] = get_args(sys.modules[mongoq.Drop.__module__].HandlerOutcome)

EXAMPLES: dict[type[Any], tuple[Any, str]] = {
    mongoq.Dead: (mongoq.Dead("unpaid"), "dead"),
    mongoq.Drop: (mongoq.Drop(), "dropped"),
    mongoq.Fork: (mongoq.Fork([mongoq.Move("next"), mongoq.Move("next")]), "moved"),
    mongoq.Later: (mongoq.Later(60), "later"),
    mongoq.Move: (mongoq.Move("next"), "moved"),
    mongoq.Retry: (mongoq.Retry(60), "retry"),
}
"""An outcome of each kind, and the result of a run that returns it."""

OBSERVED = frozenset(
    {"push", "push_many", "pop", "reserve", "reserve_many", "commit", "commit_many", "rollback", "rollback_many"}
    | {"release", "release_many", "move", "move_many", "bury"}
)
"""Methods of a queue that make a span each."""
UNOBSERVED = frozenset(
    {"reserved", "extend", "extend_many", "name", "settings", "dead", "limits", "check_push", "check_import"}
    | {"get", "peek", "size", "counts", "next_when", "blocked_by", "history", "select", "is_paused"}
    | {"remove", "replay", "purge", "import_items", "configure", "pause", "resume", "repair_sequences"}
)
"""Methods of a queue that make none: they neither push nor claim nor settle, or are for people, or made of others."""


# --- an outcome ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OUTCOMES, ids=lambda kind: kind.__name__)
def test_an_outcome_is_exported_described_and_counted(kind: type[Any]) -> None:
    assert kind.__name__ in mongoq.__all__
    assert f"{kind.__name__}(" in GUIDES
    assert kind in durations.OUTCOMES


@pytest.mark.parametrize("kind", OUTCOMES, ids=lambda kind: kind.__name__)
def test_an_outcome_is_settled_for_a_consumer_and_for_a_stage(kind: type[Any]) -> None:
    outcome, result = EXAMPLES[kind]
    with VirtualBroker() as broker:
        worker = broker.worker()
        worker.consumer("orders")(lambda _: outcome)
        pipeline = mongoq.Pipeline("shop", inputs="paid", outputs=("next", "other"), errors="errors")
        pipeline.stage("paid", to=("next", "other"))(lambda _: outcome)
        stages = broker.worker(pipeline)
        broker.queue("orders").push(1)
        broker.queue("paid").push(1)
        assert worker.run_one("orders").outcome == result
        assert stages.run_one("paid").outcome == result


# --- a setting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_an_option_of_calls_and_commands_and_described(name: str) -> None:
    assert name in inspect.signature(mongoq.Queue.configure).parameters
    assert f"--{name.replace('_', '-')}" in CliRunner().invoke(main, ["configure", "--help"]).output
    assert name in Configure.model_fields
    assert re.search(rf"^\|[^|]*`{name}`", DOCS["settings.md"], re.MULTILINE)
    assert f"{name}:" in (mongoq.QueueSettings.__doc__ or "")


# --- an operation --------------------------------------------------------------------------------


def test_each_operation_of_a_queue_makes_a_span_or_is_known_to_make_none() -> None:
    names = {name for name, _ in inspect.getmembers(mongoq.Queue) if not name.startswith("_")}
    assert names == OBSERVED | UNOBSERVED
    observed = {getattr(work, "__name__", "") for work in observe_operations(None)}  # type: ignore[arg-type]
    assert observed >= OBSERVED


def test_roles_name_operations_that_exist() -> None:
    for names in OPERATIONS.values():
        for name in names:
            assert hasattr(mongoq.Queue, name) or hasattr(mongoq.Broker, name), name
