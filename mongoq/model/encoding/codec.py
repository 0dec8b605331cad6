"""Payloads as BSON and back: values that BSON holds come back equal, and all others are refused before sending.

Values are encoded once, and the measured bytes are the bytes that are sent: ``RawBSONDocument`` passes them through the
driver unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from struct import Struct
from typing import Any, Generic, NoReturn, TypeVar
from uuid import UUID

import bson
from bson import Binary, Code, DBRef, Decimal128, Int64, ObjectId, Regex, Timestamp
from bson.binary import UUID_SUBTYPE, UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pydantic import BaseModel, TypeAdapter

from mongoq.errors import ArgumentInvalid, PayloadInvalid, PayloadTooLarge
from mongoq.model.encoding.typed import Dumped, TypedValues, parts
from mongoq.model.encoding.unreadable import read

SIZE_LIMIT = 16 * 1024 * 1024 - 64 * 1024
"""Bytes of a pushed item, at most. The server's limit is 16 MiB, and a claim, an error and a burial add fields."""
HEADERS_LIMIT = 16 * 1024
"""Bytes of headers as BSON, at most."""
NESTING_LIMIT = 100
"""Levels of a value, at most."""
TOO_DEEP = f"nested deeper than {NESTING_LIMIT} levels; store a flatter document, or text"
DOCUMENT_TYPE = 3
"""Type byte of a document in BSON."""
UNENCODABLE = (BSONError, OverflowError, UnicodeError, TypeError, ValueError)
"""Errors that the driver raises for values that BSON cannot hold."""
MAX_GROUP_VALUES = 100
"""Values that are encoded in one call, at most."""
REGEX_FLAGS = re.IGNORECASE | re.LOCALE | re.MULTILINE | re.DOTALL | re.UNICODE | re.VERBOSE
"""Flags that BSON has a letter for; the driver drops other flags."""
SMALL_VALUE_BYTES = 10_000
"""Average bytes of a value above which values are encoded one by one: memory would hold the values and the group."""

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


class _Refusal(Exception):
    """Raised for a value that cannot be stored.

    Attributes:
        problem: the reason.
        steps: path to the value, innermost step first; each caller adds one.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.steps: list[str] = []

    def path(self, root: str) -> str:
        return root + "".join(reversed(self.steps))


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
        try:
            _CHECKS.get(type(value), _check)(value, 1)
        except Exception as error:
            _unfit(value, name, error)
        try:
            raw = bson.encode({name: value}, codec_options=self.options)
        except UNENCODABLE as error:
            raise _culprit(name, value, self.options, error) from error
        if len(raw) > limit:
            raise PayloadTooLarge(name, len(raw), limit)
        return raw

    def wrap_many(self, name: str, values: Sequence[Any], *, limit: int) -> list[bytes]:
        """Do the same as ``wrapped`` for many values, in half the time; an error does not name the value."""
        wrapped: list[bytes] = []
        try:
            for value in values:
                _CHECKS.get(type(value), _check)(value, 1)
            # The first value alone shows whether the values are small.
            number = 1
            while group := [{name: value} for value in values[len(wrapped) : len(wrapped) + number]]:
                raw = bson.encode({"": group}, codec_options=self.options)
                wrapped += _parts_of(raw, len(group))
                number = MAX_GROUP_VALUES if len(raw) < number * SMALL_VALUE_BYTES else 1
        except Exception as error:
            raise PayloadInvalid(name, f"one of many: {error}") from error
        largest = max(map(len, wrapped), default=0)
        if largest > limit:
            raise PayloadTooLarge(name, largest, limit)
        return wrapped

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
        return read(document, self.options)

    def read_reply(self, reply: Any) -> Any:
        """Decode a document of a reply that was left as bytes; return other values, and ``None``, unchanged."""
        return read(bytes(reply.raw), self.options) if isinstance(reply, RawBSONDocument) else reply

    def size(self, document: Mapping[str, Any]) -> int:
        """Return the bytes of a document that consists of encoded values."""
        return len(bson.encode(document, codec_options=self.options))


_size = Struct("<i").unpack_from


def _parts_of(raw: bytes, number: int) -> list[bytes]:
    """Return the documents in ``{"": [...]}``: each follows its type, its index in digits, and a NUL."""
    parts, end = [], 10
    for _ in range(number):
        start = raw.index(0, end) + 1
        end = start + _size(raw, start)[0]
        parts.append(raw[start:end])
    return parts


def _culprit(path: str, value: Any, options: Options, error: Exception) -> PayloadInvalid:
    """Find the value that cannot be encoded, by trying ever smaller parts."""
    for step, part in parts(value):
        try:
            bson.encode({"": part}, codec_options=options)
        except Exception as smaller:
            # If the whole fails, its part fails for the same reason, with any error.
            return _culprit(path + step, part, options, smaller)
    return PayloadInvalid(path, _problem(value, error))


def _problem(value: Any, error: Exception) -> str:
    if isinstance(value, int):
        return "an integer beyond 64 bits; store a string, or a Decimal128"
    if isinstance(error, UnicodeError):
        return "a string with lone surrogates, which UTF-8 cannot hold; store bytes"
    if isinstance(value, Mapping):
        return f"a document that BSON cannot hold: {error}"
    return (
        f"BSON cannot hold a {type(value).__module__}.{type(value).__qualname__}; convert it, or give the queue a model"
    )


_UNCHECKED_TYPES = frozenset({str, int, float, bool, type(None), bytes, ObjectId, UUID, Int64, Decimal128})
"""Types that need no check, compared by identity; other types may be valid as well."""


def _check(value: Any, depth: int) -> None:
    """Refuse values that BSON accepts and gives back as something else."""
    if isinstance(value, RawBSONDocument):
        _check_raw(value, depth)
    elif isinstance(value, Mapping):
        _check_document(value, depth)
        _check_names(value)
    elif isinstance(value, list | tuple):
        _check_array(value, depth)
    elif isinstance(value, datetime):
        _check_datetime(value)
    elif isinstance(value, re.Pattern):
        raise _Refusal("a compiled pattern would come back as bson.Regex; store that, or the text")
    elif isinstance(value, Regex):
        _check_regex(value)
    elif isinstance(value, Binary) and value.subtype == UUID_SUBTYPE:
        raise _Refusal("a Binary of the UUID subtype would come back as a uuid.UUID, or not at all; store the UUID")
    elif isinstance(value, Code) and value.scope is not None:
        _check_document({"scope": value.scope}, depth)
    elif isinstance(value, DBRef):
        _check_document({name: part for name, part in value.as_doc().items() if name != "$ref"}, depth)


def _check_raw(value: RawBSONDocument, depth: int) -> None:
    """Refuse raw BSON that differs from the encoding of its values: the next caller that encodes it would change it."""
    document = bson.decode(value.raw, PLAIN_OPTIONS)
    _check_document(document, depth)
    if bson.encode(document, codec_options=PLAIN_OPTIONS) != bytes(value.raw):
        raise _Refusal(
            "raw BSON that would come back as something else: it holds a field twice, an option of a regular "
            "expression that Python does not know, or a type that MongoDB has given up"
        )


def _check_names(value: Mapping[Any, Any]) -> None:
    """Refuse a mapping with a repeated name: the server would read the first value, and Python the last."""
    names = list(value)
    if len(set(names)) < len(names):
        raise _Refusal("a mapping that holds a key twice; make it a dict")


def _check_regex(value: Regex[Any]) -> None:
    if not isinstance(value.pattern, str):
        raise _Refusal("a regular expression of bytes would come back as one of text; decode its pattern")
    if value.flags & ~REGEX_FLAGS:
        raise _Refusal(f"BSON has no letter for all flags of a regular expression, which are {value.flags}; drop some")


def _check_datetime(value: datetime) -> None:
    try:
        naive = value.utcoffset() is None
    except Exception as error:
        # ``pandas.NaT`` is a datetime, and a user's own time zone may raise anything.
        raise _Refusal(f"{value!r} is no time; where there is none, store None: {error}") from error
    if naive:
        raise _Refusal("a naive datetime says no time zone; give it one, such as UTC")
    try:
        value.astimezone(UTC)
    except OverflowError:
        raise _Refusal(f"lies beyond the years 1 to 9999 in UTC: {value!r}") from None


def _check_array(value: list[Any] | tuple[Any, ...], depth: int) -> None:
    if depth > NESTING_LIMIT:
        raise _Refusal(TOO_DEEP)
    for place, part in enumerate(value):
        if type(part) not in _UNCHECKED_TYPES:
            try:
                _CHECKS.get(type(part), _check)(part, depth + 1)
            except Exception as error:
                _refuse(part, error, f"[{place}]")


def _check_document(value: Mapping[Any, Any], depth: int) -> None:
    if depth > NESTING_LIMIT:
        raise _Refusal(TOO_DEEP)
    if "$ref" in value and "$id" in value:
        raise _Refusal("a document with both '$ref' and '$id' would come back as a DBRef; rename a key")
    for key, part in value.items():
        if type(key) is not str and not isinstance(key, str):
            raise _Refusal(f"keys are strings, not {type(key).__name__}: {key!r}")
        if type(part) not in _UNCHECKED_TYPES:
            try:
                _CHECKS.get(type(part), _check)(part, depth + 1)
            except Exception as error:
                _refuse(part, error, f".{key}")


_CHECKS: Mapping[type, Callable[[Any, int], None]] = {dict: _check_document, list: _check_array}
"""Checks by the exact type of a value: ``isinstance`` with an abstract class takes long."""


def _refuse(value: Any, error: Exception, step: str) -> NoReturn:
    """Refuse a value with a part that failed its check; ``step`` is the path to the part."""
    if isinstance(error, _Refusal):
        error.steps.append(step)
        raise error
    refusal = _Refusal(_unreadable(value, error))
    refusal.steps.append(step)
    raise refusal from error


def _unreadable(value: Any, error: Exception) -> str:
    """Return the reason why a value cannot be read; its class may be the user's, and raise anything."""
    if isinstance(error, BSONError):
        return f"raw BSON that cannot be read: {error}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return f"a {kind} that cannot be read: {type(error).__name__}: {error}"


def check(value: Any, argument: str) -> Any:
    """Return the value if BSON gives it back equal; raises ``PayloadInvalid`` with the place of the first failure."""
    try:
        _CHECKS.get(type(value), _check)(value, 1)
    except Exception as error:
        _unfit(value, argument, error)
    return value


def _unfit(value: Any, argument: str, error: Exception) -> NoReturn:
    """Raise ``PayloadInvalid`` for a value that failed its check."""
    if isinstance(error, _Refusal):
        raise PayloadInvalid(error.path(argument), error.problem) from error.__cause__
    raise PayloadInvalid(argument, _unreadable(value, error)) from error


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
        self._typed: TypedValues[M] | None = None if model is None else TypedValues(_adapter(model))

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
        dumped = self._dump(payload)
        raw = self._encoding.wrap("payload", _to_store(dumped), limit=SIZE_LIMIT)
        self._verify(dumped, raw)
        return raw

    def unwrap(self, wrapped: Wrapped) -> Any:
        """Return a payload that was encoded early, as it is stored."""
        return self._encoding.read(wrapped.raw)["payload"]

    def wrap_many(self, payloads: Sequence[Any]) -> list[bytes]:
        """Do the same as ``wrapped`` for many payloads, in half the time; an error does not name the payload."""
        dumped = list(map(self._dump, payloads))
        raws = self._encoding.wrap_many("payload", list(map(_to_store, dumped)), limit=SIZE_LIMIT)
        for each, raw in zip(dumped, raws, strict=True):
            self._verify(each, raw)
        return raws

    def _dump(self, payload: Any) -> Any:
        if self._typed is not None:
            return self._typed.dump(payload, "payload")
        if type(payload) is dict:
            return payload
        if isinstance(payload, BaseModel):
            return TypedValues(TypeAdapter(type(payload))).dump(payload, "payload")
        return payload

    def _verify(self, dumped: Any, raw: bytes) -> None:
        """Refuse a payload that these bytes would not give back."""
        if type(dumped) is Dumped:
            dumped.verify(self._encoding.decode_many([raw])[0]["payload"])

    def load(self, value: Any) -> M:
        """Return the payload that is stored as ``value``; raises ``PayloadInvalid``."""
        if self._typed is None:
            return value  # type: ignore[no-any-return]  # an untyped queue is Queue[Any]
        return self._typed.load(value, "payload")


def _to_store(dumped: Any) -> Any:
    """Return the value to encode; refuse a payload that the server would replace by its time."""
    value = dumped.stored if type(dumped) is Dumped else dumped
    if isinstance(value, Timestamp) and value.time == value.inc == 0:
        raise PayloadInvalid("payload", "the server makes its own time of Timestamp(0, 0); put it into a document")
    return value


def _adapter(model: Any) -> TypeAdapter[Any]:
    try:
        adapter = model if isinstance(model, TypeAdapter) else TypeAdapter(model)
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True)
    except Exception as error:
        # Pydantic raises many kinds of errors, and a model may raise its own.
        raise ArgumentInvalid("model", f"pydantic cannot work with {model!r}: {error}") from error
    return adapter
