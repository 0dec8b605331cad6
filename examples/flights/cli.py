"""The program: a server, the line, the proof, and the report."""

from __future__ import annotations

import argparse
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from rich.console import Console
from rich.logging import RichHandler

import mongoq
from examples.flights import show
from examples.flights.data import DataMissing, data_folder, raw_rows, reference, row_id
from examples.flights.line import Line
from examples.flights.proof import Proof, prove
from examples.flights.report import ReportFailed, read_report, what_is_missing
from examples.flights.stations import DONE, Queues, open_queues, stations
from mongoq.embedded import EmbeddedServer

__all__ = ["main"]

COLLECTION = "flights"
OK, FAILED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo, and return its exit code.

    0: every flight is accounted for, and the report agrees. (Without Java or PySpark there is no report; that
    is said, and is no failure: the queues have done their work, and it is proven.) 1: it is not so. 2: it
    could not start. 130: interrupted.
    """
    options = _parser().parse_args(arguments)
    console = Console()
    _log_to(console)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a cancelled job cleans up as well
    try:
        with _server(options.uri, options.keep) as uri:
            return _run(console, uri, options)
    except KeyboardInterrupt:
        console.print("interrupted; what was in work has been settled")
        return INTERRUPTED
    except (DataMissing, mongoq.MongoqError) as error:
        console.print(str(error), style="red", highlight=False)
        return UNUSABLE


def _log_to(console: Console) -> None:
    """Show our warnings among the progress; not those of others, for whom an interrupt is an error."""
    handler = RichHandler(console=console, show_path=False)
    handler.addFilter(lambda record: record.name.startswith(("mongoq", "examples")))
    logging.basicConfig(format="%(message)s", handlers=[handler])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights",
        description="Takes departures from New York through three queues, and lets Spark report on them. "
        "Run again on the same data, it goes on where it stopped and doubles nothing.",
    )
    parser.add_argument("--rows", type=_positive, default=5000, help="flights, spread over the year (5000)")
    parser.add_argument("--threads", type=_positive, default=4, help="threads of each station (4)")
    parser.add_argument("--no-spark", action="store_true", help="leave out the report")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--uri",
        default=os.environ.get("MONGOQ_URI"),
        help=f"a MongoDB to use, collection {COLLECTION!r} (MONGOQ_URI; default: a private one)",
    )
    where.add_argument("--keep", type=Path, metavar="PATH", help="keep the data of the private MongoDB here")
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 up, not {text!r}")
    return int(text)


@contextmanager
def _server(uri: str | None, keep: Path | None) -> Iterator[str]:
    if uri and keep is None:
        yield uri
        return
    with EmbeddedServer(keep) as server:
        yield server.uri


def _run(console: Console, uri: str, options: argparse.Namespace) -> int:
    folder = data_folder()
    with mongoq.connect(uri, collection=COLLECTION) as broker:
        database = broker.namespace.partition(".")[0]
        queues = open_queues(broker)
        _work(console, queues, folder, rows=options.rows, threads=options.threads)
        proof = _prove(uri, database, folder, rows=options.rows)
        in_history = queues.done.size(state="processed")
    agreed = _report(console, uri, database, in_history, wanted=not options.no_spark)
    show.proof(console, proof)
    return OK if proof.holds and agreed else FAILED


def _work(console: Console, queues: Queues, folder: Path, *, rows: int, threads: int) -> None:
    console.print(f"loading {rows:,} departures, {threads} threads a station", highlight=False)
    work = stations(queues, reference(folder))
    with Line(queues, work, raw_rows(folder, rows), threads=threads) as line:
        show.watch(console, line, rows)
    show.tallies(console, line.tallies)
    show.queues(console, queues)


def _prove(uri: str, database: str, folder: Path, *, rows: int) -> Proof:
    with MongoClient[dict[str, Any]](uri) as client:
        ids = (row_id(row) for row in raw_rows(folder, rows))
        return prove(client[database][COLLECTION], ids, done=DONE)


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
