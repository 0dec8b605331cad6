"""Documents out of the bytes that a server sends: fast where they are plain, and exact where they are not."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import bson
from bson import Binary, Regex
from bson.binary import UUID_SUBTYPE, UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from mongoq.data.encoding.codec import codec_options

Document = dict[str, Any]
Options = CodecOptions[Any]
Bytes = bytes | memoryview

SLICE_BYTES = 4 * 1024 * 1024
"""Bytes of BSON that are decoded at once: in Python's objects they are some ten times as many."""
LENGTH_BYTES = 4
UUID_BYTES = 16
ESCAPED_BYTES = re.compile("[\udc80-\udcff]")
"""Bytes that are no UTF-8, as ``surrogateescape`` decodes them: UTF-8 never decodes to one of these."""

AWARE_OPTIONS = codec_options()
NAIVE_OPTIONS = AWARE_OPTIONS.with_options(tz_aware=False, tzinfo=None)
PLAIN_DATE_OPTIONS = NAIVE_OPTIONS.with_options(datetime_conversion=DatetimeConversion.DATETIME)
"""The fastest: it makes no zones, and refuses dates outside the years 1 to 9999."""


@dataclass(frozen=True, slots=True)
class Garbled:
    """Text that is not UTF-8, which the server stores all the same.

    Attributes:
        text: the text with U+FFFD for what could not be read; of a document with a garbled name, what Python shows
            of it.
    """

    text: str


def split_reply(raw: bytes, size: int = SLICE_BYTES) -> Iterator[Bytes]:
    """Cut a reply of many documents, between two of them, into parts of about ``size`` bytes or one document."""
    if len(raw) <= size:
        yield raw
        return
    view, start, end = memoryview(raw), 0, 0
    while end < len(raw):
        following = end + int.from_bytes(view[end : end + LENGTH_BYTES], "little")
        if following - start > size and end > start:
            yield view[start:end]
            start = end
        end = following
    yield view[start:]


def decode(raw: Bytes, *, naive: bool) -> list[Document]:
    """Decode the documents of a part of a reply, with any content.

    Dates are aware UTC, or ``naive`` in UTC, which is half as much work. Dates that Python cannot hold are
    ``DatetimeMS``, text that is not UTF-8 is ``Garbled``, and what is marked a UUID and is none stays ``Binary``.
    """
    for options in (PLAIN_DATE_OPTIONS, NAIVE_OPTIONS) if naive else (AWARE_OPTIONS,):
        try:
            return bson.decode_all(raw, options)
        except (BSONError, TypeError, ValueError, OverflowError):
            continue
    return [_decode_one(part, NAIVE_OPTIONS if naive else AWARE_OPTIONS) for part in split_reply(bytes(raw), size=0)]


def _decode_one(raw: Bytes, options: Options) -> Document:
    try:
        document: Document = bson.decode(raw, options)
        return document
    except (BSONError, TypeError, ValueError, OverflowError):
        by_hand = options.with_options(
            document_class=RawBSONDocument,
            uuid_representation=UuidRepresentation.UNSPECIFIED,
            unicode_decode_error_handler="surrogateescape",
        )
        return {
            _decode_text(name): _decode_value(value) for name, value in RawBSONDocument(bytes(raw), by_hand).items()
        }


def _decode_value(value: Any) -> Any:
    """Return a value of a document that had to be decoded by hand."""
    if isinstance(value, str | Regex):
        text = value if isinstance(value, str) else value.pattern
        return Garbled(_decode_text(text)) if ESCAPED_BYTES.search(text) else value
    if isinstance(value, Mapping):
        parts = {_decode_text(name): _decode_value(part) for name, part in value.items()}
        return Garbled(repr(parts)) if any(map(ESCAPED_BYTES.search, value)) else parts
    if isinstance(value, list):
        return [_decode_value(part) for part in value]
    if isinstance(value, Binary) and value.subtype == UUID_SUBTYPE and len(value) == UUID_BYTES:
        return uuid.UUID(bytes=bytes(value))
    return value


def _decode_text(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="replace")
