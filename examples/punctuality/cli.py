"""The program: a server, the pipeline, the report, and the proof."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from rich.console import Console

import mongoq
from examples import program
from examples import show as common
from examples.flights.data import data_folder, reference
from examples.letters import causes
from examples.punctuality import show
from examples.punctuality.pipeline import LEASE, build
from examples.punctuality.proof import facts_of, prove
from examples.punctuality.queues import ERRORS
from examples.punctuality.report import read_report
from examples.punctuality.running import start_line
from examples.running import Site

__all__ = ["main"]

COLLECTION = "punctuality_{rows}"
"""Another number of rows is another selection, and has another collection."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example, and return its exit code.

    0: everything is where the file says that it has to be, once. 1: it is not. 2: it could not start. 130: interrupted.
    """
    parser = program.parser(
        "examples.punctuality",
        "Sorts departures and arrivals into late and on time: a source reads the flights, a fork asks for the weather "
        "of each, a join brings the two together. Killed at any moment and run again, it goes on where it was; run "
        "again after its end, it finds nothing to do.",
        collection=COLLECTION.format(rows="ROWS"),
    )
    parser.add_argument(
        "--lease",
        type=program.positive,
        default=int(LEASE.total_seconds()),
        metavar="SECONDS",
        help=f"how long what a killed process held stays with it ({LEASE.total_seconds():.0f})",
    )
    return program.run_program(_run, parser.parse_args(arguments))


def _run(console: Console, uri: str, options: argparse.Namespace) -> bool:
    folder, collection = data_folder(), COLLECTION.format(rows=options.rows)
    with mongoq.connect(uri, collection=collection) as broker:
        progress = _work(console, Site(broker, uri, options.engine), folder, options)
        common.letters(console, causes(broker, ERRORS))
        database = broker.namespace.partition(".")[0]
    with MongoClient[dict[str, Any]](uri) as client:
        items = client[database][collection]
        show.report(console, read_report(items))
        proof = prove(items, facts_of(folder, options.rows))
    show.source(console, progress, proof.rows)
    show.proof(console, proof)
    return proof.holds


def _work(console: Console, site: Site, folder: Path, options: argparse.Namespace) -> mongoq.Progress:
    message = f"{options.rows:,} flights, late or on time; {options.threads} threads a stage, engine {site.engine}"
    console.print(message, highlight=False)
    pipeline = build(
        folder,
        options.rows,
        reference(folder).weather,
        engine=site.engine,
        concurrency=options.threads,
        lease=timedelta(seconds=options.lease),
    )
    common.picture(console, pipeline)
    with start_line(pipeline, site) as line:
        common.watch(console, line, options.rows)
        progress = line.progress()
    common.stages(console, progress)
    return progress
