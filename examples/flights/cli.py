"""The program: a server, the pipeline, its dead letters after a fix, the proof, and the report."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bson import ObjectId
from pymongo import MongoClient
from rich.console import Console

import mongoq
from examples import program
from examples import show as common
from examples.flights import picture, show
from examples.flights.data import data_folder, raw_rows, reference, row_id
from examples.flights.letters import replay_enrich
from examples.flights.model import RawRow
from examples.flights.pipeline import DONE, ERRORS, build, prepare
from examples.flights.proof import Proof, prove
from examples.flights.report import Report, read_report
from examples.flights.running import start_line
from examples.flights.spark import SharedSession, SparkFailed, shared_session, what_is_missing
from examples.letters import causes
from examples.running import ENGINES, Site
from mongoq.web import create_app
from mongoq.web.server import serve

__all__ = ["main"]

COLLECTION = "flights"
PICTURE = Path("flights.png")
HOST = "127.0.0.1"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo, and return its exit code.

    0: every flight is accounted for, and the report agrees. (Without Java or PySpark there is no report; that
    is said, and is no failure: the queues have done their work, and it is proven. So it is with matplotlib and the
    picture.) 1: it is not so, or there is no picture where one was asked for. 2: it could not start. 130: interrupted.
    """
    parser = program.parser(
        "examples.flights",
        "Takes departures from New York through a pipeline, mends it, replays what has failed, and lets "
        "Spark report. Run again on the same data, it goes on where it stopped and doubles nothing.",
        collection=COLLECTION,
        engines=list(ENGINES),
    )
    report = parser.add_mutually_exclusive_group()
    report.add_argument("--no-spark", action="store_true", help="leave out the report")
    parser.add_argument("--dashboard", action="store_true", help="at the end, show the data in a browser until Ctrl-C")
    report.add_argument("--png", type=_writable, metavar="PATH", help=f"draw the report here ({PICTURE})")
    return program.run_program(_run, parser.parse_args(arguments))


def _writable(text: str) -> Path:
    """Read the path of a file that can be written, before there is all the work to write it of."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"a file to write, and {text!r} is a folder")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"a file to write; there is no folder {str(path.parent)!r}")
    if not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"a file to write; nothing can be written in {str(path.parent)!r}")
    return path


def _run(console: Console, uri: str, options: argparse.Namespace) -> bool:
    folder = data_folder()
    with shared_session() as spark, mongoq.connect(uri, collection=COLLECTION) as broker:
        database = broker.namespace.partition(".")[0]
        prepare(broker)
        site = Site(broker, uri, _engine(console, options.engine), spark.session)
        _work(console, site, folder, rows=options.rows, threads=options.threads)
        proof = _prove(uri, database, folder, rows=options.rows)
        agreed = options.no_spark or _report(console, spark, broker, uri, options.png)
        show.proof(console, proof)
        if options.dashboard:
            _serve_dashboard(console, broker, folder)
    if not options.dashboard:
        console.print("make dashboard shows such data in a browser", markup=False, highlight=False)
    return proof.holds and agreed


def _serve_dashboard(console: Console, broker: mongoq.Broker, folder: Path) -> None:
    """Serve the queues and the pipeline, read-only and for this machine alone, until Ctrl-C."""
    app = create_app(broker, pipelines=[build(reference(folder))])
    text = "the dashboard: http://{}:{}/ (Ctrl-C ends it)"
    serve(app, HOST, 0, lambda port: console.print(text.format(HOST, port), markup=False, highlight=False))


def _engine(console: Console, wanted: str) -> str:
    """Return what runs the stages: threads, where there is no Spark."""
    missing = what_is_missing() if wanted == "spark" else None
    if missing is None:
        return wanted
    console.print(f"threads run the stages, since {missing}", style="yellow", markup=False, highlight=False)
    return "threads"


def _work(console: Console, site: Site, folder: Path, *, rows: int, threads: int) -> None:
    """Run the first version of the pipeline, then the mended one on what that has failed at, if there is any."""
    message = f"loading {rows:,} departures; {threads} threads a stage, engine {site.engine}"
    console.print(message, highlight=False)
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
    with start_line(pipeline, site, rows) as line:
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


def _report(console: Console, spark: SharedSession, broker: mongoq.Broker, uri: str, png: Path | None) -> bool:
    """Show Spark's report, and return whether Spark read all of the history."""
    if missing := what_is_missing():
        console.print(f"no Spark report, since {missing}", style="yellow", markup=False, highlight=False)
        return png is None
    in_history = broker.queue(DONE).size(state="processed")
    database, _, collection = broker.namespace.partition(".")
    try:
        with console.status("Spark reads the history …"), spark.asked() as session:
            report = read_report(session, uri, database, collection)
    except SparkFailed as failed:
        console.print(f"the Spark report failed: {failed}", style="red", markup=False, highlight=False)
        return False
    show.report(console, report)
    has_picture = _draw(console, report, png)
    console.print(f"Spark read {report.flights:,} of {in_history:,} flights in history", highlight=False)
    return report.flights == in_history and has_picture


def _draw(console: Console, report: Report, png: Path | None) -> bool:
    """Draw the report where ``png`` says; return whether it is there, or was not asked for."""
    path = png or PICTURE
    if missing := picture.what_is_missing():
        console.print(f"no picture, since {missing}", style="yellow", markup=False, highlight=False)
        return png is None
    try:
        picture.draw(report, path)
    except OSError as error:
        message = f"no picture, since {path} cannot be written: {error.strerror}"
        console.print(message, style="yellow", markup=False, highlight=False, soft_wrap=True)
        return png is None
    show.picture(console, path)
    return True
