"""The program: a server, the pipeline, its dead letters after a fix, the proof, and the report."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bson import ObjectId
from pymongo import MongoClient
from rich.console import Console

import mongoq
from examples import program
from examples import show as common
from examples.flights import show
from examples.flights.data import data_folder, raw_rows, reference, row_id
from examples.flights.letters import replay_enrich
from examples.flights.model import RawRow
from examples.flights.pipeline import DONE, ERRORS, build, prepare
from examples.flights.proof import Proof, prove
from examples.flights.report import ReportFailed, read_report, what_is_missing
from examples.flights.running import started
from examples.letters import causes
from examples.running import Site

__all__ = ["main"]

COLLECTION = "flights"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo, and return its exit code.

    0: every flight is accounted for, and the report agrees. (Without Java or PySpark there is no report; that
    is said, and is no failure: the queues have done their work, and it is proven.) 1: it is not so. 2: it
    could not start. 130: interrupted.
    """
    parser = program.parser(
        "examples.flights",
        "Takes departures from New York through a pipeline, mends it, replays what has failed, and lets "
        "Spark report. Run again on the same data, it goes on where it stopped and doubles nothing.",
        collection=COLLECTION,
    )
    parser.add_argument("--no-spark", action="store_true", help="leave out the report")
    return program.ended(_run, parser.parse_args(arguments))


def _run(console: Console, uri: str, options: argparse.Namespace) -> bool:
    folder = data_folder()
    with mongoq.connect(uri, collection=COLLECTION) as broker:
        database = broker.namespace.partition(".")[0]
        prepare(broker)
        _work(console, Site(broker, uri, options.engine), folder, rows=options.rows, threads=options.threads)
        proof = _prove(uri, database, folder, rows=options.rows)
        in_history = broker.queue(DONE).size(state="processed")
    agreed = _report(console, uri, database, in_history, wanted=not options.no_spark)
    show.proof(console, proof)
    return proof.holds and agreed


def _work(console: Console, site: Site, folder: Path, *, rows: int, threads: int) -> None:
    """Run the first version of the pipeline, then the mended one on what that has failed at, if there is any."""
    told = f"loading {rows:,} departures; {threads} threads a stage, engine {site.engine}"
    console.print(told, highlight=False)
    tables = reference(folder)
    first, mended = (build(tables, broken=broken, engine=site.engine, concurrency=threads) for broken in (True, False))
    common.picture(console, first)
    _drain(console, site, first, raw_rows(folder, rows), total=rows)
    replayed = replay_enrich(site.broker)
    if replayed:
        show.fix(console, first.compare(mended), len(replayed))
        _drain(console, site, mended, (), total=len(replayed))
    _show_trail(console, site.broker, replayed)


def _drain(console: Console, site: Site, pipeline: mongoq.Pipeline, rows: Iterable[RawRow], *, total: int) -> None:
    with started(pipeline, site, rows) as line:
        common.watch(console, line, total)
        common.stages(console, line.progress())
    common.letters(console, causes(site.broker, ERRORS))


def _show_trail(console: Console, broker: mongoq.Broker, replayed: Sequence[ObjectId]) -> None:
    """Show the way of one flight: of one that was replayed, if there is any."""
    id = next(iter(replayed), None) or next((item.id for item in broker.queue(DONE).history(page=1)), None)
    hops = None if id is None else broker.trail(id)
    if hops:
        show.trail(console, id, hops)


def _prove(uri: str, database: str, folder: Path, *, rows: int) -> Proof:
    with MongoClient[dict[str, Any]](uri) as client:
        ids = (row_id(row) for row in raw_rows(folder, rows))
        return prove(client[database][COLLECTION], ids, done=DONE, dead=ERRORS)


def _report(console: Console, uri: str, database: str, in_history: int, *, wanted: bool) -> bool:
    """Show what Spark reads, and say whether it saw all of the history."""
    if not wanted:
        return True
    if missing := what_is_missing():
        console.print(f"no Spark report, since {missing}", style="yellow", highlight=False)
        return True
    try:
        with console.status("Spark reads the history …"):
            found = read_report(uri, database, COLLECTION)
    except ReportFailed as failed:
        console.print(f"the Spark report failed: {failed}", style="red", markup=False, highlight=False)
        return False
    show.report(console, found)
    console.print(f"Spark read {found.flights:,} of {in_history:,} flights in history", highlight=False)
    return found.flights == in_history
