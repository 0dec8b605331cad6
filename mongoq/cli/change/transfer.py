"""Commands ``export`` and ``import``: the items of a queue as lines of canonical extended JSON, and back."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import IO, Any
from uuid import UUID

import click
from bson import Binary, Decimal128, Int64, ObjectId, json_util
from bson.binary import UuidRepresentation
from bson.codec_options import DatetimeConversion
from bson.errors import InvalidBSON

from mongoq.cli.base.amounts import amount
from mongoq.cli.base.arguments import FILTER, QUEUE
from mongoq.cli.base.connection import new_queue_text, with_broker
from mongoq.cli.base.errors import OPERATION_FAILED
from mongoq.cli.base.help import examples
from mongoq.cli.base.lines import Line, LineInvalid, read_line, read_lines
from mongoq.cli.base.output import Output, discard_stdout
from mongoq.cli.base.progress import Meter
from mongoq.cli.change.dead import open_letters
from mongoq.errors import MongoqError
from mongoq.model.encoding.codec import Encoding
from mongoq.model.encoding.extended_json import read_json
from mongoq.model.encoding.unreadable import UnreadableDocument
from mongoq.protocol.history.query import Query, make_query
from mongoq.protocol.history.transfer import MAX_BATCH, ImportResult, check_history, check_import, exported_fields
from mongoq.protocol_threads.history.mistaken import is_known, refuse_unknown
from mongoq.protocol_threads.history.query import Search
from mongoq.protocol_threads.history.transfer import import_items
from mongoq.sync import Broker, Queue

CANONICAL = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL,
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
PAGE = 500
"""Items that one command reads, at most."""
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
@click.argument("queue", type=QUEUE)
@click.option("--history", is_flag=True, help="Items of its history instead of live ones.")
@click.option("--dead", is_flag=True, help="Its dead letters instead.")
@click.option("--state", type=click.Choice(LIVE_STATES), help="Only live items in this state.")
@click.option("--where", type=FILTER, help='Filter on payloads in JSON, such as \'{"city": "Paris"}\'.')
@click.option(
    "--output", "-o", "path", type=click.Path(dir_okay=False, path_type=Path), help="New file; default stdout."
)
@with_broker
def export(
    *,
    queue: str,
    history: bool,
    dead: bool,
    state: Any,
    where: Mapping[str, Any] | None,
    path: Path | None,
    broker: Broker,
    output: Output,
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
    handle: Queue[Any] = open_letters(broker, queue) if dead else broker.queue(queue)
    broker._run(refuse_unknown, handle.name)
    exporter = Exporter(handle, "processed" if history else state, where)
    try:
        with _open_output(path) as stream:
            exporter.write_all(stream)
    except KeyboardInterrupt:
        hint = f"; {path} was not written" if path else ""
        output.note(f"stopped after {amount(exporter.written)} of {handle.name}{hint}")
        # The reader may not read on, and Python would wait for it while it flushes at exit.
        discard_stdout()
        raise
    if path is None or not output.as_json:
        output.note(f"exported {amount(exporter.written)} of {handle.name}" + (f" to {path}" if path else ""))
    else:
        output.document({"queue": handle.name, "exported": exporter.written, "file": str(path)})
    if exporter.unreadable:
        ids = ", ".join(map(str, exporter.unreadable[:3]))
        output.note(f"left out {amount(len(exporter.unreadable))} that cannot be decoded: {ids}")
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
        with open(part, "x", encoding="ascii", opener=_open_private) as stream:
            try:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                _give_name(part, path)
            finally:
                part.unlink(missing_ok=True)
    except FileExistsError:
        raise MongoqError(
            f"{path} was made by another program meanwhile, and stays as it is; name a new file"
        ) from None
    except OSError as error:
        raise MongoqError(f"{path} cannot be written: {error.strerror}") from error


def _open_private(path: str, flags: int) -> int:
    """Open a file that only this user can read: it holds payloads."""
    return os.open(path, flags, 0o600)


def _give_name(part: Path, path: Path) -> None:
    """Rename a file, but over no other one.

    Raises:
        FileExistsError: there is a file with the new name.
    """
    try:
        path.hardlink_to(part)  # the one way to rename that replaces nothing
    except FileExistsError:
        raise
    except OSError:  # the file system has no links
        if path.exists():
            raise FileExistsError(str(path)) from None
        part.replace(path)


class Exporter:
    """Writes the items of a queue.

    Attributes:
        written: items that were written so far.
        unreadable: ids of items that cannot be decoded, and were left out.
    """

    def __init__(self, handle: Queue[Any], state: Any, where: Mapping[str, Any] | None) -> None:
        self.written = 0
        self.unreadable: list[Any] = []
        self._searched = 0
        self._handle = handle
        # Blocked items come last, in their order: an import gives the first ones their places before.
        self._ranges = [
            make_query(handle._context, since=None, until=None, where=where, state=each, page=PAGE)
            for each in ((None, "blocked") if state is None else (state,))
        ]

    def write_all(self, stream: IO[str]) -> None:
        """Write all items, page by page: no cursor stays open, and a page takes the memory of one reply."""
        with Meter(prints=stream is sys.stdout) as meter:
            for wanted in self._ranges:
                self._write_range(stream, wanted, meter)

    def _write_range(self, stream: IO[str], wanted: Query, meter: Meter) -> None:
        encoding = self._handle._context.broker.encoding
        is_filtered = bool(wanted.conditions(self._handle.name))
        search = Search(self._handle._context, wanted)
        while search.rest is not None:
            documents = self._handle._run(lambda _: search.read())
            readable = [document for document in documents if not isinstance(document, UnreadableDocument)]
            self.unreadable += [each["_id"] for each in documents if isinstance(each, UnreadableDocument)]
            stream.writelines(f"{make_line(document, encoding)}\n" for document in readable)
            stream.flush()
            self.written += len(readable)
            searched = f", {self._searched + search.examined:,} searched" if is_filtered else ""
            meter.show(f"{amount(self.written)} written{searched}")
        self._searched += search.examined


def make_line(document: Mapping[str, Any], encoding: Encoding) -> str:
    """Return an item as a line of canonical extended JSON, or in BSON if that would not come back equal.

    A payload may have any keys: ``{"$oid": "…"}`` would come back as an id.
    """
    fields = exported_fields(document)
    text = json_util.dumps(fields, json_options=CANONICAL)
    # Reading each line back would take half of the time of an export.
    if is_plain(fields):
        return text
    raw = encoding.raw(fields).raw
    try:
        is_equal = encoding.raw(read_json(text)).raw == raw
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


def read_fields(text: bytes, encoding: Encoding) -> Any:
    """Return the fields of an item from its line.

    Raises:
        ValueError: the line is no JSON, or its BSON cannot be decoded.
    """
    fields = read_line(text)
    if isinstance(fields, dict) and list(fields) == [BSON_NAME] and isinstance(fields[BSON_NAME], bytes):
        return encoding.decode_many([bytes(fields[BSON_NAME])])[0]
    return fields


@click.command(
    "import",
    short_help="Add exported items to a queue, each once.",
    epilog=examples("mongoq import orders orders.jsonl", "zcat orders.jsonl.gz | mongoq import orders"),
)
@click.argument("queue", type=QUEUE)
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
    suffix = "" if broker._run(is_known, queue) else new_queue_text(broker)
    importer = Importer(handle, output, dry_run=dry_run)
    importer.read_all(file)
    if dry_run:
        change = f"import {amount(importer.checked)} into {queue}{suffix}"
        if output.as_json:
            output.document({"would": change, "count": importer.checked})
        else:
            output.line(f"would {change}")
        return
    _report(output, handle.name, importer.result, suffix)


def _report(output: Output, queue: str, result: ImportResult, suffix: str) -> None:
    refusals = [{"id": str(id), "reason": reason} for id, reason in result.refusals]
    if output.as_json:
        counts = {name: getattr(result, name) for name in ("pushed", "already", "refused")}
        output.document({"queue": queue, **counts, "refusals": refusals})
    else:
        before = f"; {result.already:,} were imported before, or are there" if result.already else ""
        output.line(f"imported {amount(result.pushed)} into {queue}{suffix if result.pushed else ''}{before}")
        for refusal in refusals:
            output.line(f"refused {refusal['id']}: {refusal['reason']}")
        if result.refused > len(refusals):
            output.line(f"refused {result.refused - len(refusals):,} more")
    if result.refused:
        click.get_current_context().exit(OPERATION_FAILED)


class Importer:
    """Imports the lines of a stream.

    Attributes:
        checked: items that were checked so far.
        result: result of the imports so far.
    """

    def __init__(self, handle: Queue[Any], output: Output, *, dry_run: bool) -> None:
        self.checked = 0
        self.result = ImportResult()
        self._handle, self._output, self._dry_run = handle, output, dry_run
        self._has_begun = False

    def read_all(self, stream: Any) -> None:
        """Import all lines.

        Raises:
            LineInvalid: a line is no item; the lines before it are imported, and no others.
        """
        if self._dry_run:
            self._handle.is_paused()  # reads the stored settings
        try:
            with Meter() as meter:
                for lines in read_lines(stream):
                    for start in range(0, len(lines), MAX_BATCH):
                        self._read(lines[start : start + MAX_BATCH])
                        meter.show(f"{amount(self.checked)} imported")
        except LineInvalid as invalid:
            raise LineInvalid(invalid.number, invalid.problem, self._state()) from None
        except KeyboardInterrupt:
            self._output.note(self._describe_stop())
            raise

    def _describe_stop(self) -> str:
        if not self._has_begun:
            return "stopped: nothing was imported"
        hint = "import the same file again to go on, each item is imported once"
        return f"stopped; {self._state()}, and maybe a batch under way; {hint}"

    def _state(self) -> str:
        if self._dry_run:
            return f"{amount(self.checked)} before it could be imported"
        before = f", {self.result.already:,} were there" if self.result.already else ""
        return f"{amount(self.result.pushed)} imported{before}"

    def _read(self, lines: Sequence[Line]) -> None:
        self._has_begun = self._has_begun or not self._dry_run
        envelopes = []
        bad: LineInvalid | None = None
        for number, text in lines:
            try:
                fields = read_fields(text, self._handle._context.broker.encoding)
                envelopes.append(check_import(self._handle._context, fields))
            except (ValueError, InvalidBSON) as error:
                bad = LineInvalid(number, str(error))
                break
        if self._dry_run:
            check_history(self._handle._context, envelopes)
        elif envelopes:
            self.result += self._handle._run(import_items, envelopes)
        self.checked += len(envelopes)
        if bad is not None:
            raise bad
