"""Documents that another program wrote and that cannot be decoded, for example text that is not UTF-8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import bson
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

Options = CodecOptions[Any]
DECODE_ERRORS = (BSONError, TypeError, ValueError, OverflowError)
"""Errors that the driver raises for BSON it cannot decode."""


class UnreadableDocument(dict[str, Any]):
    """The readable part of a document that cannot be decoded: its fields, with U+FFFD for bytes that are not UTF-8.

    Attributes:
        raw: the document in BSON.
        problem: the reason why it cannot be decoded.
    """

    def __init__(self, fields: Mapping[str, Any], raw: bytes, problem: str) -> None:
        super().__init__(fields)
        self.raw = raw
        self.problem = problem


def read(raw: bytes, options: Options) -> dict[str, Any]:
    """Decode a document; return an ``UnreadableDocument`` if that fails."""
    try:
        document: dict[str, Any] = bson.decode(raw, options)
        return document
    except DECODE_ERRORS as error:
        return UnreadableDocument(_fields(raw, options), raw, f"it holds BSON that cannot be read: {error}")


def _fields(raw: bytes, options: Options) -> dict[str, Any]:
    lenient = options.with_options(
        unicode_decode_error_handler="replace",
        uuid_representation=UuidRepresentation.UNSPECIFIED,
        document_class=dict,
    )
    try:
        return dict(bson.decode(raw, lenient))
    except DECODE_ERRORS:
        # For example a reference without a name: decode the inner documents one by one.
        fields = RawBSONDocument(raw, lenient.with_options(document_class=RawBSONDocument))
        return {name: _field(value, lenient) for name, value in fields.items()}


def _field(value: Any, options: Options) -> Any:
    if not isinstance(value, RawBSONDocument):
        return value
    try:
        return bson.decode(value.raw, options)
    except DECODE_ERRORS:
        return value
