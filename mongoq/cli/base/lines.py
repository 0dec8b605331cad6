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
    """A line that cannot be used.

    Attributes:
        number: number of the line.
        problem: what is wrong with it.
    """

    def __init__(self, number: int, problem: str, state: str = "") -> None:
        super().__init__(f"line {number}: {problem}" + (f"; {state}" if state else ""))
        self.number = number
        self.problem = problem


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
                raise LineInvalid(number + 1, f"longer than {MAX_LINE_BYTES:,} bytes")
            continue
        lines = b"".join((*parts, head)).split(b"\n")
        yield _number_lines(lines, number)
        number += len(lines)
        parts, length = [tail], len(tail)
    if last := _number_lines([b"".join(parts)], number):
        yield last


def _number_lines(lines: list[bytes], before: int) -> list[Line]:
    return [(number, line) for number, line in enumerate(lines, before + 1) if line.strip()]


class LineSender:
    """Sends the lines of a stream to a queue, batch by batch; a line that is no item ends it.

    Attributes:
        output: output of the command.
        dry_run: True to check the lines alone.
        has_begun: True once a batch may have been sent.
        verb: what happens to the lines, such as "pushed".
        batch: lines that are sent at a time, at most.
    """

    verb: str
    batch = 1_000

    def __init__(self, output: Output, *, dry_run: bool) -> None:
        self.output = output
        self.dry_run = dry_run
        self.has_begun = False

    def parse(self, text: bytes) -> Any:
        """Return the value of a line."""
        return read_line(text)

    def check(self, item: Any) -> None:
        """Raise ``ArgumentInvalid`` for a value that is no item."""
        raise NotImplementedError

    def send(self, items: list[Any], numbers: list[int]) -> None:
        """Send items, whose lines have these numbers; ``ArgumentInvalid`` if one of them cannot be sent, and none is.

        In a dry run, they are only checked.
        """
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
            with progress(prints=prints) as show:
                for lines in read_lines(stream):
                    for start in range(0, len(lines), self.batch):
                        self._send_lines(lines[start : start + self.batch])
                        show(lines[-1][0])
        except LineInvalid as invalid:
            raise LineInvalid(invalid.number, invalid.problem, self.state()) from None
        except KeyboardInterrupt:
            did = f"; {self.state()}{self.hint()}" if self.has_begun else f": nothing was {self.verb}"
            self.output.note(f"stopped{did}")
            raise

    def _send_lines(self, lines: list[Line]) -> None:
        self.has_begun = self.has_begun or not self.dry_run
        items, numbers = [], []
        bad: LineInvalid | None = None
        for number, text in lines:
            try:
                items.append(self.parse(text))
            except (ValueError, InvalidBSON) as error:
                bad = LineInvalid(number, str(error))
                break
            numbers.append(number)
        try:
            if items:
                self.send(items, numbers)
        except ArgumentInvalid:
            for place, item in enumerate(items):
                try:
                    self.check(item)
                except ArgumentInvalid as invalid:
                    if place:
                        self.send(items[:place], numbers[:place])
                    raise LineInvalid(numbers[place], str(invalid)) from None
            raise
        if bad is not None:
            raise bad
