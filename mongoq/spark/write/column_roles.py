"""Roles of the columns of a table that is written: payload, orders, fences, ids, or none."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.types import BinaryType, NullType, StringType, StructField, StructType

from mongoq.errors import ArgumentInvalid
from mongoq.spark.types.envelope_columns import CORRUPT, ENVELOPE, PAYLOAD, RAW
from mongoq.spark.types.values import Values
from mongoq.spark.write.payloads import AsDocument, AsJson, AsRaw, AsValue, Payloads
from mongoq.spark.write.row_ids import canonical_of
from mongoq.spark.write.row_orders import ORDERS, Orders
from mongoq.spark.write.write_options import WriteOptions

__all__ = ["ID", "TOKEN", "ColumnRoles"]

ID, TOKEN, QUEUE = "_id", "_token", "_q"
KNOWN = frozenset({*ENVELOPE, *ORDERS, CORRUPT})
CARRIED_BY_READERS = ("_when", "_key")
"""Columns with values of the item that was read, which the new item only takes over with ``carry``."""


class ColumnRoles:
    """Role of each column, checked before a task starts.

    Attributes:
        payloads: converter of payloads; ``None`` where no column belongs to payloads.
        orders: converter of the columns with options of pushes and moves.
        fenced: True if rows may hold a reservation: there is a ``_token``, and an ``_id``.
        id_values: converter of ``idColumn`` to the bytes that ids are made of.

    Raises:
        ArgumentInvalid: a column cannot be written, or is unknown, missing, or of the wrong type.
    """

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._fields = _by_name(schema)
        self._options = options
        self._named = set(options.fields or ())
        envelope = [name for name in self._fields if name in KNOWN and name not in self._named]
        self._refuse_unknown(envelope)
        self.fenced = options.settle is not False and {ID, TOKEN} <= set(envelope)
        if options.settle and TOKEN in envelope and not self.fenced:
            raise ArgumentInvalid("schema", f"column {TOKEN!r} settles nothing without {ID!r}; add it, or drop both")
        for name in (ID, TOKEN) if self.fenced else ():
            _check_type(self._fields[name], StringType())
        self.payloads = self._payloads(envelope)
        self.orders = Orders(self._ordering(envelope), options)
        self.id_values = self._id_values()
        if self.payloads is None and not self.fenced:
            raise ArgumentInvalid("schema", "no column makes the payload; add a column 'payload', or others, or fields")
        if options.to is None and "_to" not in envelope and not self.fenced:
            raise ArgumentInvalid("to", "this option is missing: the queue to push to; or add a column '_to'")

    def _refuse_unknown(self, envelope: Iterable[str]) -> None:
        mine = {*envelope, *self._named, self._options.id_column}
        # A misspelled control column would silently be left out.
        unknown = [name for name in self._fields if name.startswith("_") and name not in mine]
        if unknown:
            known = ", ".join(sorted(KNOWN))
            named = ", ".join(map(repr, unknown))
            problem = f"no columns of the envelope: {named}; it has {known}; name payload columns in fields"
            raise ArgumentInvalid("schema", problem)

    def _payloads(self, envelope: list[str]) -> Payloads | None:
        if self._options.fields is not None:
            return AsDocument.of([self._field(name, "fields") for name in self._options.fields])
        others = [name for name in self._fields if name not in envelope and not name.startswith("_")]
        whole = [name for name in (RAW, PAYLOAD) if name in self._fields]
        if whole and len({*whole, *others}) > 1:
            problem = f"columns {', '.join(map(repr, dict.fromkeys([*whole, *others])))} make several payloads"
            raise ArgumentInvalid("schema", f"{problem}; drop some, or name those that make one in fields")
        if whole:
            return self._whole(self._fields[whole[0]])
        return AsDocument.of([self._fields[name] for name in others]) if others else None

    @staticmethod
    def _whole(field: StructField) -> Payloads:
        if field.name == RAW:
            _check_type(field, BinaryType())
            return AsRaw(RAW)
        return AsJson(PAYLOAD) if isinstance(field.dataType, StringType) else AsValue.of(field)

    def _ordering(self, envelope: list[str]) -> list[StructField]:
        """Return the columns of orders; a table that was read keeps some of them only with ``carry``."""
        was_read = self.fenced or QUEUE in envelope
        left = {name for name in CARRIED_BY_READERS if was_read and name[1:] not in self._options.carry}
        return [self._fields[name] for name in envelope if name in ORDERS and name not in left]

    def _id_values(self) -> Values | None:
        if self._options.id_column is None:
            return None
        field = self._field(self._options.id_column, "idColumn")
        try:
            return canonical_of(field.dataType)
        except TypeError as error:
            raise ArgumentInvalid("idColumn", f"column {field.name!r}: {error}") from None

    def _field(self, name: str, option: str) -> StructField:
        if name not in self._fields:
            raise ArgumentInvalid(option, f"there is no column {name!r}; there are {', '.join(self._fields)}")
        return self._fields[name]


def _by_name(schema: StructType) -> dict[str, StructField]:
    names = schema.fieldNames()
    for name in names:
        if names.count(name) > 1:
            raise ArgumentInvalid("schema", f"column {name!r} is there {names.count(name)} times; rename or drop it")
    return {field.name: field for field in schema.fields}


def _check_type(field: StructField, type: StringType | BinaryType) -> None:
    if not isinstance(field.dataType, (type.__class__, NullType)):
        given = field.dataType.simpleString()
        raise ArgumentInvalid("schema", f"column {field.name!r} is to be a {type.simpleString()}, not {given}")
