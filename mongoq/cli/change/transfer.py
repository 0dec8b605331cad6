"""Commands ``export`` and ``import``: the items of a queue as lines of canonical extended JSON, and back."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import IO, Any
from uuid import UUID

import click
from bson import Binary, Decimal128, Int64, ObjectId, json_util
from bson.binary import UuidRepresentation
from bson.codec_options import DatetimeConversion

from mongoq import ImportResult
from mongoq.cli.base.arguments import examples, queue_argument, where_option
from mongoq.cli.base.changes import amount
from mongoq.cli.base.connection import new_queue_text, with_broker
from mongoq.cli.base.lines import LineSender, read_line
from mongoq.cli.base.output import OPERATION_FAILED, Output, discard_stdout, progress
from mongoq.data.encoding.codec import Encoding, codec_options
from mongoq.data.encoding.extended_json import read_json
from mongoq.errors import MongoqError
from mongoq.sync import Broker, Queue

CANONICAL = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL,
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
ENCODING = Encoding(codec_options())
BSON_NAME = "bson"
"""Only name in a line that holds its item in BSON, because extended JSON could not give it back equal."""
PLAIN_TYPES = frozenset({str, int, float, bool, type(None), datetime, ObjectId, bytes, UUID, Decimal128, Int64})
"""Types of values that canonical extended JSON gives back equal, whatever they hold."""
LIVE_STATES = ("ready", "scheduled", "reserved", "expired", "blocked")
PART_SUFFIX = ".part"
"""End of the name of a file that is not complete."""
PART_NAME_LENGTH = 48
"""Characters of a file's name that the name of the incomplete file begins with; systems allow 255 bytes in all."""


@click.command(
    short_help="Write the items of a queue as lines of JSON.",
    epilog=examples("mongoq export orders > orders.jsonl", "mongoq export orders --dead --output letters.jsonl"),
)
@queue_argument
@click.option("--history", is_flag=True, help="Items of its history instead of live ones.")
@click.option("--dead", is_flag=True, help="Its dead letters instead.")
@click.option("--state", type=click.Choice(LIVE_STATES), help="Only live items in this state.")
@where_option
@click.option(
    "--output", "-o", "path", type=click.Path(dir_okay=False, path_type=Path), help="New file; default stdout."
)
@with_broker
def export(
    *, queue: str, history: bool, dead: bool, state: Any, where: Any, path: Path | None, broker: Broker, output: Output
) -> None:
    """Write the live items of QUEUE as lines of canonical extended JSON, which "mongoq import" reads.

    The items are read page by page, and stay as they are. A reserved item is written as it would come back: due when
    its lease ends. Items of sequences come in their order, blocked ones last. Items that change meanwhile may be
    missing or be written twice; pause the queue for an exact copy.
    """
    if history + dead + (state is not None) > 1:
        raise click.UsageError("choose one of --history, --dead and --state")
    if path is not None and path.exists():
        raise click.UsageError(f"{path} exists; name a new file")
    handle: Queue[Any] = broker.inspect().dead_queue(queue) if dead else broker.queue(queue)
    broker.inspect().check_known(handle.name)
    # Blocked items come last, in their order: an import gives the first ones their places before.
    states: tuple[Any, ...] = ("processed",) if history else (None, "blocked") if state is None else (state,)
    pages = (page for each in states for page in handle.select(state=each, where=where).export())
    written, unreadable = 0, list[Any]()
    try:
        with _open_output(path) as stream, progress(prints=stream is sys.stdout) as show:
            for items, left_out in pages:
                stream.writelines(f"{make_line(fields)}\n" for fields in items)
                stream.flush()
                written += len(items)
                unreadable += left_out
                show(written)
    except KeyboardInterrupt:
        hint = f"; {path} was not written" if path else ""
        output.note(f"stopped after {amount(written)} of {handle.name}{hint}")
        # The reader may not read on, and Python would wait for it while it flushes at exit.
        discard_stdout()
        raise
    if path is None or not output.as_json:
        output.note(f"exported {amount(written)} of {handle.name}" + (f" to {path}" if path else ""))
    else:
        output.document({"queue": handle.name, "exported": written, "file": str(path)})
    if unreadable:
        ids = ", ".join(map(str, unreadable[:3]))
        output.note(f"left out {amount(len(unreadable))} that cannot be decoded: {ids}")
        click.get_current_context().exit(OPERATION_FAILED)


@contextmanager
def _open_output(path: Path | None) -> Iterator[IO[str]]:
    """Open a file that gets its name only when it is complete and on disk; stdout without a path.

    Until then it has a name that no other export uses. After any error nothing is left of it.
    """
    if path is None:
        yield sys.stdout
        return
    part = path.with_name(f"{path.name[:PART_NAME_LENGTH]}.{token_hex(4)}{PART_SUFFIX}")
    try:
        # Only this user can read it: it holds payloads.
        private = partial(os.open, mode=0o600)
        with open(part, "x", encoding="ascii", opener=private) as stream:
            try:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                try:
                    path.hardlink_to(part)  # the one way to rename that replaces nothing
                except FileExistsError:
                    raise
                except OSError:  # the file system has no links
                    if path.exists():
                        raise FileExistsError(str(path)) from None
                    part.replace(path)
            finally:
                part.unlink(missing_ok=True)
    except FileExistsError:
        raise MongoqError(
            f"{path} was made by another program meanwhile, and stays as it is; name a new file"
        ) from None
    except OSError as error:
        raise MongoqError(f"{path} cannot be written: {error.strerror}") from error


def make_line(fields: Mapping[str, Any]) -> str:
    """Return an item as a line of canonical extended JSON, or in BSON if that would not come back equal.

    A payload may have any keys: ``{"$oid": "…"}`` would come back as an id.
    """
    text = json_util.dumps(fields, json_options=CANONICAL)
    # Reading each line back would take half of the time of an export.
    if is_plain(fields):
        return text
    raw = ENCODING.raw(fields).raw
    try:
        is_equal = ENCODING.raw(read_json(text)).raw == raw
    except Exception:
        # Any error: values of other programs may mean nothing to the parser.
        is_equal = False
    return text if is_equal else json_util.dumps({BSON_NAME: Binary(raw)}, json_options=CANONICAL)


def is_plain(value: Any) -> bool:
    """Return whether canonical extended JSON certainly gives a value back equal: no names with ``$``, no rare types."""
    kind = type(value)
    if kind is dict:
        return all(name[:1] != "$" for name in value) and all(map(is_plain, value.values()))
    return all(map(is_plain, value)) if kind is list else kind in PLAIN_TYPES


@click.command(
    "import",
    short_help="Add exported items to a queue, each once.",
    epilog=examples("mongoq import orders orders.jsonl", "zcat orders.jsonl.gz | mongoq import orders"),
)
@queue_argument
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--dry-run", is_flag=True, help="Check the lines, say how many items there are, and add nothing.")
@with_broker
def import_(*, queue: str, file: Any, dry_run: bool, broker: Broker, output: Output) -> None:
    """Add items that "mongoq export" has written to QUEUE, from FILE or stdin.

    Each item has the id, payload, due date, priority, attempts, key and headers that it had; a dead letter has its
    origin and error. Items of sequences take their places in the order of the lines. The same items again add nothing,
    for seven days after they are settled. A bad line ends the command, and the lines before it are imported.
    """
    handle = broker.queue(queue)
    if targets := broker.bindings().get(queue):
        bound = ", ".join(map(repr, targets))
        raise MongoqError(f"{queue!r} is a topic, and nobody takes items from it; import into one of {bound}")
    suffix = "" if broker.inspect().is_known(queue) else new_queue_text(broker)
    importer = Importer(handle, output, dry_run=dry_run)
    importer.read_all(file)
    result = importer.result
    if dry_run:
        change = f"import {amount(result.pushed)} into {queue}{suffix}"
        output.result({"would": change, "count": result.pushed}, f"would {change}")
        return
    refusals = [{"id": str(id), "reason": reason} for id, reason in result.refusals]
    counts = {name: getattr(result, name) for name in ("pushed", "already", "refused")}
    before = f"; {result.already:,} were imported before, or are there" if result.already else ""
    text = f"imported {amount(result.pushed)} into {queue}{suffix if result.pushed else ''}{before}"
    output.result({"queue": queue, **counts, "refusals": refusals}, text)
    if not output.as_json:
        output.refusals(result)
    if result.refused:
        click.get_current_context().exit(OPERATION_FAILED)


class Importer(LineSender):
    """Imports the lines of a stream.

    Attributes:
        result: result of the imports so far; in a dry run, of the checks.
    """

    def __init__(self, handle: Queue[Any], output: Output, *, dry_run: bool) -> None:
        super().__init__(output, dry_run=dry_run)
        self.result = ImportResult()
        self._handle = handle

    def parse(self, text: bytes) -> Any:
        """Return the fields of an item; its line may hold them in BSON."""
        fields = read_line(text)
        if isinstance(fields, dict) and list(fields) == [BSON_NAME] and isinstance(fields[BSON_NAME], bytes):
            fields = ENCODING.decode_many([bytes(fields[BSON_NAME])])[0]
        self._handle.check_import([fields])
        return fields

    def state(self) -> str:
        """Return how many items were imported."""
        if self.dry_run:
            return f"{amount(self.result.pushed)} before it could be imported"
        before = f", {self.result.already:,} were there" if self.result.already else ""
        return f"{amount(self.result.pushed)} imported{before}"

    def hint(self) -> str:
        """Return how to go on."""
        hint = "import the same file again to go on, each item is imported once"
        return f", and maybe a batch under way; {hint}"

    def send(self, items: list[Any], numbers: list[int]) -> None:
        """Import the items of lines; the numbers of these tell nothing, since each item has its id."""
        self.result += self._handle.import_items(items, dry_run=self.dry_run)
