"""JSON lines of a file or of stdin: read as they arrive, and sent to a queue; errors name the line by its number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bson.errors import InvalidBSON

from mongoq.cli.base.output import Output, progress
from mongoq.data.encoding.extended_json import read_json
from mongoq.errors import ArgumentInvalid, MongoqError

CHUNK_BYTES = 1024 * 1024
"""Bytes that are read at a time, at most."""
MAX_LINE_BYTES = 256 * 1024 * 1024
"""Bytes of one line, at most: the largest item takes about so many in canonical extended JSON."""
PLACE = re.compile(r": line 1 column (\d+) \(char \d+\)$")
"""Place of an error in the message of Python's parser, which has been given one line."""
Line = tuple[int, bytes]
"""Number of a line, from 1 up, and its text."""


class LineInvalid(MongoqError):
    """A line that cannot be used; the message has its number."""


def read_line(text: bytes) -> Any:
    """Return the value of a line of JSON, as ``read_json`` does.

    Raises:
        ValueError: the line means no value; the message has the column, and no number of a line within it.
    """
    try:
        return read_json(text)
    except ValueError as error:
        raise ValueError(PLACE.sub(r" at column \1", str(error))) from None


def read_lines(stream: Any) -> Iterator[list[Line]]:
    """Iterate over the lines of a binary stream, as many at a time as have arrived; blank lines are left out.

    Lines of a slow writer are thus returned at once, and do not wait for others to fill a batch.

    Raises:
        LineInvalid: a line is too long to hold an item.
    """
    parts: list[bytes] = []
    number = length = 0
    while chunk := stream.read1(CHUNK_BYTES):
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            parts.append(chunk)
            length += len(chunk)
            if length > MAX_LINE_BYTES:
                raise LineInvalid(f"line {number + 1}: longer than {MAX_LINE_BYTES:,} bytes")
            continue
        lines = b"".join((*parts, head)).split(b"\n")
        yield [(place, line) for place, line in enumerate(lines, number + 1) if line.strip()]
        number += len(lines)
        parts, length = [tail], len(tail)
    if (last := b"".join(parts)).strip():
        yield [(number + 1, last)]


class LineSender:
    """Sends the lines of a stream to a queue, batch by batch; a line that is no item ends it.

    Attributes:
        output: output of the command.
        dry_run: True to check the lines alone.
        batch: lines that are sent at a time, at most.
    """

    batch = 1_000

    def __init__(self, output: Output, *, dry_run: bool) -> None:
        self.output = output
        self.dry_run = dry_run

    def parse(self, text: bytes) -> Any:
        """Return the item of a line.

        Raises:
            ArgumentInvalid, ValueError, InvalidBSON: it has none that can be stored.
        """
        raise NotImplementedError

    def send(self, items: list[Any], numbers: list[int]) -> None:
        """Send the items of the lines with these numbers."""
        raise NotImplementedError

    def state(self) -> str:
        """Return what was sent so far."""
        raise NotImplementedError

    def hint(self) -> str:
        """Return what follows the state after Ctrl-C."""
        raise NotImplementedError

    def read_all(self, stream: Any, *, prints: bool = False) -> None:
        """Send all lines.

        Raises:
            LineInvalid: a line is no item; the lines before it are sent, and no others.
        """
        try:
            explaining = self.output.explaining(lambda: self.state() + ("" if self.dry_run else self.hint()))
            with explaining, progress(prints=prints) as show:
                for lines in read_lines(stream):
                    for start in range(0, len(lines), self.batch):
                        items: dict[int, Any] = {}
                        bad: LineInvalid | None = None
                        for number, text in lines[start : start + self.batch]:
                            try:
                                items[number] = self.parse(text)
                            except (ValueError, InvalidBSON, ArgumentInvalid) as error:
                                bad = LineInvalid(f"line {number}: {error}")
                                break
                        if items:
                            self.send(list(items.values()), list(items))
                        if bad is not None:
                            raise bad
                        show(lines[-1][0])
        except LineInvalid as invalid:
            raise LineInvalid(f"{invalid}; {self.state()}") from None
