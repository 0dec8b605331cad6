"""``python -m bench commands``: what commands that change nothing, and scrapes, cost in a deep collection."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bson import ObjectId
from click.testing import CliRunner

from bench import report
from bench.benchmark import Benchmark
from bench.core import positive
from bench.costs import Call, measure_cost
from bench.deep_collection import DEAD_QUEUE, QUEUE, RARE, DeepCollection, fill_collection, fill_waiting
from bench.place import Place, place
from mongoq import Broker
from mongoq.cli.inspect import watch
from mongoq.cli.main import main
from mongoq.monitoring.prometheus import PrometheusMetrics

__all__ = ["BENCHMARK"]

PARTS = ("commands", "scrape")
CACHE_MB = 6_144
WHERE = f'{{"city": "{RARE}"}}'
COMMON = '{"city": "city 7"}'
BEGINNING = "2000-01-01T00:00Z"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; may be repeated")
    parser.add_argument(
        "--items",
        type=positive,
        default=1_000_000,
        help="items that are ready, as many that are scheduled, dead and processed; default %(default)s",
    )
    parser.add_argument(
        "--waiting", type=positive, default=5_000_000, help="ready items under a scrape; default %(default)s"
    )
    parser.add_argument("--only", metavar="TEXT", help="only commands with this text in them")


def run(options: argparse.Namespace) -> dict[str, Any]:
    parts, result = options.part or PARTS, {}
    with place(options.uri, options.database, "commands", cache_mb=CACHE_MB) as here:
        facts = {"machine": report.machine(here.client)}
        if "commands" in parts:
            filled = _fill(here, fill_collection, options.items)
            result["commands"] = _facts(filled) | {"measured": measure_commands(here, filled.known_id, options.only)}
            here.client[here.database][here.collection].drop()
        if "scrape" in parts:
            with Broker(here.client[here.database][here.collection]) as broker:
                broker.ensure_indexes()
            filled = _fill(here, fill_waiting, options.waiting)
            result["scrape"] = _facts(filled) | {"measured": measure_scrape(here)}
    return {**facts, **result}


def _fill(here: Place, fill: Callable[..., DeepCollection], depth: int) -> DeepCollection:
    filled = fill(here.client[here.database][here.collection], depth)
    report.progress(
        f"{', '.join(f'{number:,} {kind}' for kind, number in filled.items.items())}: {filled.seconds:.0f} s"
    )
    return filled


def _facts(filled: DeepCollection) -> dict[str, Any]:
    return {"items": filled.items, "fill_seconds": round(filled.seconds, 1)}


def commands(known: ObjectId) -> Iterator[tuple[str, ...]]:
    """Return the command lines that change nothing."""
    yield ("queues",)
    yield ("queues", QUEUE)
    yield ("queues", "order")  # an unknown name, with suggestions
    for state in ("ready", "scheduled", "reserved", "expired", "processed", "live"):
        yield ("peek", QUEUE, "--state", state)
    yield ("peek", DEAD_QUEUE, "--state", "reserved")  # there is none
    yield ("peek", DEAD_QUEUE, "--state", "expired")
    yield ("show", str(known))
    yield ("show", str(ObjectId()))
    yield ("history", QUEUE)
    yield ("history", QUEUE, "--where", COMMON)
    yield ("history", QUEUE, "--where", WHERE)
    yield from ((name,) for name in ("workers", "bindings", "stats"))
    yield ("stats", QUEUE)
    yield ("settings", QUEUE)
    yield ("dead", "list", QUEUE)
    yield ("dead", "list", QUEUE, "--group")
    yield ("dead", "list", QUEUE, "--group", *SELECTIONS[0])
    for option in SELECTIONS:
        yield ("dead", "list", QUEUE, *option)
    yield ("dead", "show", QUEUE, *SELECTIONS[0])
    for option in ((), SELECTIONS[0]):
        yield ("dead", "replay", QUEUE, *option, "--dry-run")
        yield ("dead", "move", QUEUE, "--to", "again", *option, "--dry-run")
        yield ("dead", "drop", QUEUE, *option, "--dry-run")
    for name in ("pause", "resume"):
        yield (name, QUEUE, "--dry-run")
    yield ("configure", QUEUE, "--history", "7d", "--existing", "--dry-run")
    yield ("purge", QUEUE, "--dry-run")
    yield ("purge", QUEUE, "--where", WHERE, "--dry-run")
    yield from (("purge", QUEUE, "--state", state, "--dry-run") for state in STATES)
    yield ("remove", QUEUE, str(known), "--dry-run")
    yield ("drop-queue", QUEUE, "--force", "--dry-run")
    yield ("replay", QUEUE, "--where", WHERE, "--dry-run")
    yield ("replay", QUEUE, "--limit", "1000", "--dry-run")
    yield ("replay", QUEUE, "--dry-run")
    yield ("export", QUEUE, "--where", WHERE)
    yield ("export", QUEUE, "--state", "reserved")
    yield ("export", QUEUE)
    yield ("doctor",)
    yield ("health",)


SELECTIONS: tuple[tuple[str, ...], ...] = (
    ("--reason", RARE),
    ("--error", RARE),
    ("--where", WHERE),
    ("--stage", "no such stage"),
    ("--error", "shop.errors.Error7"),
)
STATES = ("ready", "scheduled", "reserved", "expired", "processed")


def measure_commands(here: Place, known: ObjectId, only: str | None = None) -> list[dict[str, Any]]:
    """Run each command in this process."""
    environment = {"MONGOQ_URI": here.uri, "MONGOQ_DATABASE": here.database, "MONGOQ_COLLECTION": here.collection}
    lines = [line for line in commands(known) if only is None or only in " ".join(line)]
    measured = [measure_cost(here, _name(line, known), partial(_run, line, environment)) for line in lines]
    return measured + (measure_scrape(here) if only is None else [])


def measure_scrape(here: Place) -> list[dict[str, Any]]:
    """Measure what is read again and again: a scrape, a frame of ``watch``, and ``queues``."""
    with Broker(here.client[here.database][here.collection]) as broker:
        metrics = PrometheusMetrics(broker, cache=0)
        calls: Mapping[str, Call] = {
            "a scrape": metrics.render,
            "a frame of watch": lambda: broker.inspect().queues(budget=watch.BUDGET),
            "a read of queues": lambda: broker.inspect().queues(),
        }
        return [measure_cost(here, name, call) for name, call in calls.items()]


def _name(line: Sequence[str], known: ObjectId) -> str:
    words = ["KNOWN" if word == str(known) else "UNKNOWN" if ObjectId.is_valid(word) else word for word in line]
    return " ".join(f"'{word}'" if " " in word else word for word in words)


def _run(line: Sequence[str], environment: Mapping[str, str]) -> Any:
    with TemporaryDirectory() as folder:
        more = ["--output", str(Path(folder) / "items")] if line[0] == "export" else []
        result = CliRunner().invoke(main, [*line, *more], env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return {"exit": result.exit_code, "lines": result.stdout.count("\n"), "last": result.output[-200:].strip()}


BENCHMARK = Benchmark("documents examined by commands that change nothing, and by a scrape", add_options, run)
