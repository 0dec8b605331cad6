"""Log lines of the command line, on stderr: text for people, one JSON object a line for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import click

from mongoq.cli.base.connection import with_options
from mongoq.cli.base.output import printable

FIELD_PREFIX = "mongoq_"
"""Beginning of the attributes that mongoq adds to its records, such as ``mongoq_queue``."""
log_options = with_options(
    click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info"),
    click.option("--log-format", type=click.Choice(["text", "json"]), default="text"),
)


def configure_logging(level: str, format: str) -> None:
    """Send the records of all loggers to stderr.

    A program that configures ``logging`` itself (``dictConfig``) replaces this, since its module is imported later.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # At DEBUG, PyMongo logs each command with its documents, and asyncio each choice of a selector.
    for name in ("pymongo", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


class TextFormatter(logging.Formatter):
    """Formats a record as time (UTC), level, process, logger and message; further lines are indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """Return the time of a record, with milliseconds."""
        return _time(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record: texts of users in it begin no record, and a terminal does not obey them."""
        return printable(super().format(record), indent="  ")


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object, with the fields that mongoq has added to it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON of a record; values that JSON does not have become text."""
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in record.__dict__.items() if name.startswith(FIELD_PREFIX)}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return json.dumps(fields, default=str)


def _time(record: logging.LogRecord) -> str:
    time = datetime.fromtimestamp(record.created, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
