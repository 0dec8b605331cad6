"""The frame of a program: its options, its console, its server, and how it ends."""

from __future__ import annotations

import argparse
import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

import mongoq
from examples.flights.data import DataMissing
from examples.running import WORKERS
from examples.servers import server

__all__ = ["FAILED", "INTERRUPTED", "OK", "UNUSABLE", "CannotStart", "parser", "positive", "run_program"]

OK, FAILED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130


class CannotStart(Exception):
    """There is something that the program cannot do without; the text says what to do about it."""


Work = Callable[[Console, str, argparse.Namespace], bool]


def parser(
    name: str, description: str, *, collection: str, engines: Sequence[str] = WORKERS
) -> argparse.ArgumentParser:
    """Return a parser of the options that all have, for ``python -m NAME``; more may be added."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("--rows", type=positive, default=5000, help="flights, spread over the year (5000)")
    parser.add_argument("--threads", type=positive, default=4, help="threads of each stage (4)")
    parser.add_argument("--engine", choices=engines, default="threads", help="what runs the stages (threads)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--uri",
        default=os.environ.get("MONGOQ_URI"),
        help=f"a MongoDB to use, collection {collection!r} (MONGOQ_URI; default: a private one)",
    )
    where.add_argument("--keep", type=Path, metavar="PATH", help="keep the data of the private MongoDB here")
    return parser


def positive(text: str) -> int:
    """Read a whole number from 1 up."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 up, not {text!r}")
    return int(text)


def run_program(work: Work, options: argparse.Namespace) -> int:
    """Work on the server that the options choose, and return the exit code.

    0: the work was as it should be. 1: it was not. 2: it could not be done. 130: interrupted.
    """
    console = Console()
    _log_to(console)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a cancelled job cleans up as well
    try:
        with server(options.uri, options.keep) as uri:
            return OK if work(console, uri, options) else FAILED
    except KeyboardInterrupt:
        console.print("interrupted; what was in work has been settled")
        return INTERRUPTED
    except (CannotStart, DataMissing, mongoq.MongoqError) as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return UNUSABLE


def _log_to(console: Console) -> None:
    """Show the first warning of each kind among the progress, in one line: the dead letters have all tracebacks.

    Warnings of other libraries are not shown: for them an interrupt is an error.
    """
    kinds = set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        is_known = record.msg in kinds
        kinds.add(record.msg)
        record.exc_info = record.exc_text = None
        return not is_known and record.name.startswith(("mongoq", "examples"))

    handler = RichHandler(console=console, show_path=False)
    handler.addFilter(is_new)
    logging.basicConfig(format="%(message)s", handlers=[handler])
