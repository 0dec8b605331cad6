"""Payloads as BSON and back: values that BSON holds come back equal, and all others are refused before sending.

Values are encoded once, and the measured bytes are the bytes that are sent: ``RawBSONDocument`` passes them through the
driver unchanged.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

import bson
from bson import Binary, Code, DBRef, Decimal128, Int64, ObjectId, Regex, Timestamp
from bson.binary import UUID_SUBTYPE, UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from mongoq.data.arguments import moment
from mongoq.errors import ArgumentInvalid, PayloadInvalid, PayloadTooLarge

if TYPE_CHECKING:
    from mongoq.data.encoding.typed import TypedValues

SIZE_LIMIT = 16 * 1024 * 1024 - 64 * 1024
"""Bytes of a pushed item, at most. The server's limit is 16 MiB, and a claim, an error and a burial add fields."""
NESTING_LIMIT = 100
"""Levels of a value, at most."""
HEADERS_LIMIT = 16 * 1024
"""Bytes of headers as BSON, at most."""
DOCUMENT_TYPE = 3
"""Type byte of a document in BSON."""
UNENCODABLE = (BSONError, OverflowError, UnicodeError, TypeError, ValueError)
"""Errors that the driver raises for values that BSON cannot hold."""
DECODE_ERRORS = (BSONError, TypeError, ValueError, OverflowError)
"""Errors that the driver raises for BSON it cannot decode."""
REGEX_FLAGS = re.IGNORECASE | re.LOCALE | re.MULTILINE | re.DOTALL | re.UNICODE | re.VERBOSE
"""Flags that BSON has a letter for; the driver drops other flags."""

M = TypeVar("M")
Options = CodecOptions[Any]


def codec_options(options: Options | None = None) -> Options:
    """Return options under which values come back equal: aware UTC dates and standard UUIDs.

    Dates that Python cannot hold come back as ``bson.DatetimeMS``; otherwise they would fail the claim that found them.
    """
    return (options or CodecOptions()).with_options(
        tz_aware=True,
        tzinfo=UTC,
        uuid_representation=UuidRepresentation.STANDARD,
        datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    )


PLAIN_OPTIONS = codec_options()
"""Options for reading the content of raw BSON."""


class Encoding:
    """Encodes values under a collection's codec options, and keeps options under which documents stay BSON.

    Attributes:
        options: codec options of the collection.
        undecoded: the same, but documents stay ``RawBSONDocument``.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.undecoded = options.with_options(document_class=RawBSONDocument)

    def encode(self, name: str, value: Any, *, limit: int) -> Any:
        """Check, encode and measure a value, and return it in a form that is sent as exactly these bytes.

        Raises:
            PayloadInvalid: BSON cannot hold it, or would give it back as something else; names the place.
            PayloadTooLarge: more than ``limit`` bytes.
        """
        return self.unwrap(name, self.wrap(name, value, limit=limit))

    def wrap(self, name: str, value: Any, *, limit: int) -> bytes:
        """Check, encode and measure a value like ``encode``, and return ``{name: value}`` as BSON."""
        if type(value) not in _UNCHECKED_TYPES:
            check(value, name)
        try:
            raw = bson.encode({name: value}, codec_options=self.options)
        except UNENCODABLE as error:
            path, part, smaller = find_culprit(
                name, value, error, lambda part, _depth: bson.encode({"": part}, codec_options=self.options)
            )
            if isinstance(part, int):
                problem = "an integer beyond 64 bits; store a string, or a Decimal128"
            elif isinstance(smaller, UnicodeEncodeError) and isinstance(part, Mapping):
                problem = f"its key {smaller.object!r:.100} has lone surrogates, which UTF-8 cannot hold"
            elif isinstance(smaller, UnicodeError):
                problem = "a string with lone surrogates, which UTF-8 cannot hold; store bytes"
            elif isinstance(part, Mapping):
                problem = f"a document that BSON cannot hold: {smaller}"
            else:
                problem = f"BSON cannot hold a {_kind(part)}; convert it, or give the queue a model"
            raise PayloadInvalid(path, problem) from error
        if len(raw) > limit:
            raise PayloadTooLarge(name, len(raw), limit)
        return raw

    def unwrap(self, name: str, raw: bytes) -> Any:
        """Return a value from the bytes of ``wrapped``, in a form that is sent as exactly these bytes."""
        if raw[4] == DOCUMENT_TYPE:
            return RawBSONDocument(raw[raw.index(0, 5) + 1 : -1], self.undecoded)
        return self.of_bytes(raw)[name]

    def decode_sendable(self, value: Any) -> Any:
        """Return a value in the form to send as a read would return it."""
        return bson.decode(bson.encode({"": value}, codec_options=self.options), codec_options=self.options)[""]

    def raw(self, document: Mapping[str, Any]) -> RawBSONDocument:
        """Return a document that consists of encoded values in the form to send."""
        return self.of_bytes(bson.encode(document, codec_options=self.options))

    def of_bytes(self, raw: bytes) -> RawBSONDocument:
        """Return the document with these bytes."""
        return RawBSONDocument(raw, self.undecoded)

    def decode_many(self, documents: Sequence[bytes]) -> list[dict[str, Any]]:
        """Decode documents that were left as bytes, many at a time.

        Raises:
            InvalidBSON: one of them cannot be decoded.
        """
        return bson.decode_all(b"".join(documents), self.options)

    def read(self, document: bytes) -> dict[str, Any]:
        """Decode a document; return an ``UnreadableDocument`` if that fails."""
        return read_document(document, self.options)

    def read_reply(self, reply: Any) -> Any:
        """Decode a document of a reply that was left as bytes; return other values, and ``None``, unchanged."""
        return read_document(bytes(reply.raw), self.options) if isinstance(reply, RawBSONDocument) else reply

    def size(self, document: Mapping[str, Any]) -> int:
        """Return the bytes of a document that consists of encoded values."""
        return len(bson.encode(document, codec_options=self.options))


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class _Refusal(Exception):
    """Raised for a value that cannot be stored, with the reason."""


def check(value: Any, argument: str) -> Any:
    """Return the value if BSON gives it back equal; raises ``PayloadInvalid`` with the place of the first failure."""
    try:
        _check(value)
    except Exception as failure:
        # The class of a value may be the user's, and raise anything.
        path, part, error = find_culprit(argument, value, failure, _check)
        problem = str(error)
        if isinstance(error, BSONError):
            problem = f"raw BSON that cannot be read: {error}"
        elif not isinstance(error, _Refusal):
            problem = f"a {_kind(part)} that cannot be read: {type(error).__name__}: {error}"
        raise PayloadInvalid(path, problem) from error
    return value


_UNCHECKED_TYPES = frozenset({str, int, float, bool, type(None), bytes, ObjectId, UUID, Int64, Decimal128})
"""Types that need no check, compared by identity; other types may be valid as well."""


def _check(value: Any, depth: int = 1) -> None:
    """Refuse values that BSON accepts and gives back as something else."""
    # By the exact type first: ``isinstance`` with an abstract class takes long.
    if type(value) is dict:
        _check_document(value, depth)
    elif isinstance(value, list | tuple):
        _check_parts(value, depth)
    elif isinstance(value, RawBSONDocument):
        document = bson.decode(value.raw, PLAIN_OPTIONS)
        _check_document(document, depth)
        # The next caller that encodes it would change it.
        if bson.encode(document, codec_options=PLAIN_OPTIONS) != bytes(value.raw):
            raise _Refusal(
                "raw BSON that would come back as something else: it holds a field twice, an option of a regular "
                "expression that Python does not know, or a type that MongoDB has given up"
            )
    elif isinstance(value, Mapping):
        _check_document(value, depth)
        # The server would read the first value, and Python the last.
        if len(set(value)) < len(list(value)):
            raise _Refusal("a mapping that holds a key twice; make it a dict")
    elif isinstance(value, Code) and value.scope is not None:
        _check_document(value.scope, depth + 1)
    elif isinstance(value, DBRef):
        _check_document({name: part for name, part in value.as_doc().items() if name != "$ref"}, depth)
    elif isinstance(value, datetime):
        try:
            moment(value, "")
        except ArgumentInvalid as error:
            raise _Refusal(error.problem) from error
    elif isinstance(value, re.Pattern):
        raise _Refusal("a compiled pattern would come back as bson.Regex; store that, or the text")
    elif isinstance(value, Regex) and not isinstance(value.pattern, str):
        raise _Refusal("a regular expression of bytes would come back as one of text; decode its pattern")
    elif isinstance(value, Regex) and value.flags & ~REGEX_FLAGS:
        raise _Refusal(f"BSON has no letter for all flags of a regular expression, which are {value.flags}; drop some")
    elif isinstance(value, Binary) and value.subtype == UUID_SUBTYPE:
        raise _Refusal("a Binary of the UUID subtype would come back as a uuid.UUID, or not at all; store the UUID")


def _check_document(value: Mapping[Any, Any], depth: int) -> None:
    if "$ref" in value and "$id" in value:
        raise _Refusal("a document with both '$ref' and '$id' would come back as a DBRef; rename a key")
    for key in value:
        if not isinstance(key, str):
            raise _Refusal(f"keys are strings, not {type(key).__name__}: {key!r}")
    _check_parts(value.values(), depth)


def _check_parts(values: Collection[Any], depth: int) -> None:
    if depth > NESTING_LIMIT:
        raise _Refusal(f"nested deeper than {NESTING_LIMIT} levels; store a flatter document, or text")
    for part in values:
        if type(part) not in _UNCHECKED_TYPES:
            _check(part, depth + 1)


def parts(value: Any) -> list[tuple[str, Any]]:
    """Return the parts of a value, each with its step in a path: ``.key`` or ``[place]``."""
    if isinstance(value, DBRef):
        value = value.as_doc()
    if isinstance(value, Code) and value.scope is not None:
        return [(".scope", value.scope)]
    if isinstance(value, Mapping):
        return [(f".{key}", part) for key, part in value.items() if isinstance(key, str)]
    if isinstance(value, list | tuple):
        return [(f"[{place}]", part) for place, part in enumerate(value)]
    return []


def find_culprit(
    path: str, value: Any, error: Exception, attempt: Callable[[Any, int], Any], depth: int = 1
) -> tuple[str, Any, Exception]:
    """Find the part that fails, by trying ever smaller parts: return its path, the part, and its error.

    Args:
        path: path to the value.
        value: value for which the attempt fails.
        error: error of that.
        attempt: takes a part and its depth.
        depth: depth of the value.
    """
    try:
        tried = parts(value) if depth <= NESTING_LIMIT else []
    except Exception:
        # The class of a value may be the user's, and raise anything.
        return path, value, error
    for step, part in tried:
        try:
            attempt(part, depth + 1)
        except Exception as smaller:
            return find_culprit(path + step, part, smaller, attempt, depth + 1)
    return path, value, error


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A payload that was encoded early, because its value may change before it is sent.

    Attributes:
        raw: ``{"payload": payload}`` as BSON.
    """

    raw: bytes


class Codec(Generic[M]):
    """The payloads of one queue, typed when the queue has a model.

    A typed payload is validated, dumped and checked when it is pushed, and validated when it is read. The push also
    tries the validation of the read, with exactly the bytes that are sent.
    """

    def __init__(self, encoding: Encoding, model: Any = None) -> None:
        self._encoding = encoding
        self._typed: TypedValues[M] | None = None if model is None else _values_of(model)

    @property
    def untyped(self) -> bool:
        """True when payloads are returned as they are stored."""
        return self._typed is None

    def encode(self, payload: Any) -> Any:
        """Return the value to send: checked, measured, and safe from later changes by the caller.

        Raises:
            PayloadInvalid: the model refuses it, or BSON cannot give it back equal.
            PayloadTooLarge: more than 16 MiB less 64 KiB as BSON.
        """
        return self._encoding.unwrap("payload", self.wrap(payload))

    def wrap(self, payload: Any) -> bytes:
        """Check and measure a payload like ``encode``, and return ``{"payload": payload}`` as BSON."""
        if type(payload) is Wrapped:
            return payload.raw
        if self._typed is None and type(payload) is dict:
            return self._encoding.wrap("payload", payload, limit=SIZE_LIMIT)
        typed = self._typed
        # Of a model only where pydantic was imported: by itself it takes a third of the import of mongoq.
        if typed is None and isinstance(payload, getattr(sys.modules.get("pydantic.main"), "BaseModel", ())):
            typed = _values_of(type(payload))
        value, stored = (payload, payload) if typed is None else typed.dump(payload, "payload")
        if isinstance(stored, Timestamp) and stored.time == stored.inc == 0:
            problem = "the server makes its own time of Timestamp(0, 0); put it into a document"
            raise PayloadInvalid("payload", problem)
        raw = self._encoding.wrap("payload", stored, limit=SIZE_LIMIT)
        if typed is not None:
            typed.verify(value, self._encoding.decode_many([raw])[0]["payload"], "payload")
        return raw

    def unwrap(self, wrapped: Wrapped) -> Any:
        """Return a payload that was encoded early, as it is stored."""
        return self._encoding.read(wrapped.raw)["payload"]

    def wrap_many(self, payloads: Sequence[Any]) -> list[bytes]:
        """Do the same as ``wrap`` for many payloads."""
        return list(map(self.wrap, payloads))

    def load(self, value: Any) -> M:
        """Return the payload that is stored as ``value``; raises ``PayloadInvalid``."""
        if self._typed is None:
            return value  # type: ignore[no-any-return]  # an untyped queue is Queue[Any]
        return self._typed.load(value, "payload")


def _values_of(model: Any) -> TypedValues[Any]:
    from pydantic import TypeAdapter

    from mongoq.data.encoding.typed import TypedValues

    try:
        adapter = model if isinstance(model, TypeAdapter) else TypeAdapter(model)
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True)
    except Exception as error:
        # Pydantic raises many kinds of errors, and a model may raise its own.
        raise ArgumentInvalid("model", f"pydantic cannot work with {model!r}: {error}") from error
    return TypedValues(adapter)


# --- documents of other programs that cannot be decoded ---------------------------------------------


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


def read_document(raw: bytes, options: Options) -> dict[str, Any]:
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
