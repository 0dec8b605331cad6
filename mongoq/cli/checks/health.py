"""Command ``mongoq health``: whether the server can be used, for exec probes."""

from __future__ import annotations

from typing import Any

import click

from mongoq.cli.base.connection import TIMEOUT_SECONDS, connect, with_connection, with_json
from mongoq.cli.base.errors import OPERATION_FAILED
from mongoq.cli.base.output import Output
from mongoq.data.process import Health
from mongoq.errors import MongoqError


@click.command()
@with_connection
@with_json
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT_SECONDS,
    show_default=True,
    help="Seconds that the check may take.",
)
def health(*, timeout: float, output: Output, **place: Any) -> None:
    """Check that a server takes writes and the collection is suitable.

    Exits with 0 if so, and with 1 and the reasons if not.
    """
    try:
        with connect(timeout=timeout, **place) as broker:
            result = broker.health(within=timeout)
    except MongoqError as error:
        result = Health.of([str(error)])
    if output.as_json:
        output.document(result.to_document())
    else:
        for line in ("healthy",) if result.healthy else result.reasons:
            output.line(line)
    if not result.healthy:
        click.get_current_context().exit(OPERATION_FAILED)
