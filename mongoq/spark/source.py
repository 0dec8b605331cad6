"""The format ``mongoq`` as Spark sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from mongoq.spark.options import ReadOptions

if TYPE_CHECKING:
    from mongoq.spark.reader import MongoqReader

__all__ = ["MongoqDataSource"]


class MongoqDataSource(DataSource):
    """Reads one queue of a mongoq collection: ``spark.read.format("mongoq")``.

    Options, in any case:

    ============== ================================================================================
    ``uri``        where MongoDB is, with credentials if it needs them. They never appear in plans, logs
                   or errors. Read preference is the URI's, by default the primary; read concern is majority.
    ``database``   default: the one that the URI names
    ``collection`` default: ``mongoq``
    ``queue``      the name of the queue
    ``view``       ``live`` (default): what is not processed. ``history``: what is. ``dead``: what is
                   live in the dead queue, ``<queue>.dead``, or in the queue itself if it is one.
                   ``all``: live and history.
    ``partitions`` how many tasks read, at most; default: one for each 50,000 items, up to 200
    ============== ================================================================================

    A database, collection or queue that does not exist is an empty table. What is pushed, moved or settled
    during the read may be seen or not; nothing else is missed, and no item is seen twice.

    Without a schema the table has the envelope, and the payload as JSON:

    ============== ========= ====================================================================
    ``_id``        string    the id in hex
    ``_q``         string    the queue
    ``_state``     string    ready, scheduled, reserved, expired or processed, when the read was planned
    ``_when``      timestamp eligible from; while reserved: end of the lease; null once processed
    ``_priority``  integer   −100 to 100, lower goes first
    ``_attempts``  integer   reservations in this queue so far
    ``_reserved``  boolean   whether a worker took it and has not settled it
    ``_token``     string    the fence of the reservation in hex
    ``_by``        string    the worker that holds, or last held, the item
    ``_key``       string    the producer's key
    ``_headers``   string    the producer's metadata as JSON
    ``_error``     struct    the last failure: ``type``, ``message``, ``at``
    ``_origin``    struct    of a dead or replayed item: ``queue``, ``id``, ``reason``, ``attempts``,
                             ``key``, ``at``
    ``_once``      timestamp until then the id is remembered
    ``_settled``   string    history: the token that settled it, in hex
    ``_processed`` timestamp history: when it was popped or committed
    ``_expires``   timestamp history: when it may be deleted
    ``payload``    string    the payload as JSON
    ============== ========= ====================================================================

    With ``.schema(…)`` the server sends only the fields that are asked for. Columns with the names above are
    the envelope, and must have the types above. Each other column is the field of that name in the payload,
    null where it is missing or null; nested documents and arrays follow the schema in the same way:

    ================================= ========================================================
    string                            string; ObjectId in hex; UUID and Decimal128 as text;
                                      documents and arrays as JSON
    boolean                           boolean
    byte, short, integer, long        int32, int64, and doubles without a fraction, within its range
    float, double                     double, and integers that a double holds exactly
    decimal(p, s)                     Decimal128, integers, and strings that hold a number, if p and s
                                      hold every digit
    date                              date (its day in UTC), or a string such as ``2026-11-20``
    timestamp                         date, or a string in ISO 8601 with an offset
    timestamp_ntz                     the same, as wall time in UTC
    binary                            binary of any subtype, UUID
    array, struct, map of string to … array, document, document
    ================================= ========================================================

    Anything else fails the task with ``ColumnMismatch``, which names item, column and type. A column that is
    declared ``NOT NULL`` fails the same way where the value is missing.

    JSON holds strings, numbers, booleans, null, arrays and objects as they are, and as strings: dates in ISO
    8601 (``2026-11-20T08:30:00.250Z``), ObjectIds in hex, UUIDs, Decimal128 (with all its digits), binary in
    base64, and the doubles ``NaN``, ``Infinity`` and ``-Infinity``, so that ``from_json`` reads them all.
    A date outside the years 1 to 9999 is a number, the milliseconds since 1970; a BSON timestamp is its
    seconds and its increment in an object, a regular expression its pattern.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "mongoq"

    def schema(self) -> StructType:
        """Return the columns of the envelope, and the payload as JSON."""
        from mongoq.spark.schema import default_schema

        ReadOptions.parse(self.options)
        return default_schema()

    def reader(self, schema: StructType) -> MongoqReader:
        """Return the reader for these columns; checks options and columns."""
        from mongoq.spark.reader import MongoqReader

        return MongoqReader(ReadOptions.parse(self.options), schema)
