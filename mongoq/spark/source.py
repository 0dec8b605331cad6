"""The format ``mongoq`` as Spark sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from mongoq.spark.read.read_options import ReadOptions
from mongoq.spark.stream.stream_options import HistoryStreamOptions, QueueStreamOptions
from mongoq.spark.types.envelope_columns import default_schema
from mongoq.spark.versions import require

if TYPE_CHECKING:
    from mongoq.spark.read.reader import MongoqReader
    from mongoq.spark.stream.history_stream import HistoryStream
    from mongoq.spark.stream.queue_stream import QueueStreamReader
    from mongoq.spark.write.stream_writer import MongoqStreamWriter
    from mongoq.spark.write.writer import MongoqWriter

STREAM_ONLY = frozenset({"consumer", "maxitems", "lag", "lease"})
"""Options that only streams have: they show that Spark asks for the columns of a stream, which it does not say."""


class MongoqDataSource(DataSource):
    """Reads queues of a mongoq collection: ``spark.read.format("mongoq")``.

    Options, their names in any case:

    | option | meaning |
    |---|---|
    | `uri` | the URI of MongoDB, with credentials if it needs them; no error and no plan of a DataFrame shows them; \
for SQL see [connections](#connections). Default: `MONGOQ_URI` in the environment of the driver |
    | `database` | default: `MONGOQ_DATABASE`, if the URI is `MONGOQ_URI`; else the one in the URI, or `mongoq` |
    | `collection` | default: `MONGOQ_COLLECTION`, if the URI is `MONGOQ_URI`; else `mongoq` |
    | `queue` | the name of the queue; the path of `load("orders")` means the same |
    | `queues` | or the names of several queues, as a JSON list: `["orders", "refunds"]` |
    | `prefix` | or the common beginning of the names, such as `orders.`; dead queues are left out |
    | `view` | `live` (default): not processed; `ready`, `scheduled`, `reserved`, `expired`: those in this state; \
`history`: processed; `all`: live and history; `dead`: live in the dead queues |
    | `since`, `until` | a time in ISO 8601 with an offset: history processed from then on, or before; for other items \
the time when they are eligible counts |
    | `fields` | the fields of the payload to read, as a JSON list: `["customer", "total"]`; default: all |
    | `inferSchema` | `true`: without a schema, a column for each field that a sample of payloads has |
    | `sampleSize` | the items of that sample: 1 to 100,000; default: 1,000 |
    | `mode` | treatment of values that do not fit: `FAILFAST` (default), `PERMISSIVE`, `DROPMALFORMED` |
    | `pushdown` | `true`: the server evaluates filters first; needs PySpark 4.1, and Spark's \
`spark.sql.python.filterPushdown.enabled` |
    | `partitions` | the number of tasks that read, at most; default: one for each 125,000 items, up to 200 |
    | `missing` | result for an unknown queue: `fail` (default), or an `empty` table |
    | `readPreference` | `primary`, `primaryPreferred`, `secondary`, `secondaryPreferred` or `nearest`; default: the \
URI's, or the primary |

    The dead queue of `orders` is `orders.dead`; the dead queue of `orders.dead` is itself. A prefix applies to names
    without `.dead`. States are those at the moment the read was planned.

    Reads have majority read concern. An item that is pushed, moved or settled while the read runs may be seen or not;
    an item that stays is seen exactly once.

    Without a schema the table has the envelope, and the payload as JSON:

    | column | type | meaning |
    |---|---|---|
    | `_id` | string | the id, in hex |
    | `_q` | string | the queue |
    | `_state` | string | ready, scheduled, reserved, expired or processed, at the moment the read was planned |
    | `_when` | timestamp | eligible from; while reserved: end of the lease; null once processed |
    | `_pushed` | timestamp | when the item came to this queue, by a push, a move or a replay, on the server's clock, \
its delay included; null where it is unknown: after a worker has had the item, unless a stream had it before |
    | `_priority` | integer | -100 to 100, lower goes first |
    | `_attempts` | integer | reservations in this queue so far |
    | `_reserved` | boolean | true when a worker has reserved it and has not settled it |
    | `_token` | string | the fence of the reservation, in hex |
    | `_by` | string | the worker that holds, or last held, the item |
    | `_key` | string | the producer's key |
    | `_headers` | string | the producer's metadata, as JSON |
    | `_error` | struct | the last failure: `type`, `message`, `at` |
    | `_origin` | struct | of a dead item: `queue`, `id`, `reason`, `attempts`, `key`, `at` |
    | `_once` | timestamp | until then the id is remembered |
    | `_settled` | string | history: the token that settled it, in hex |
    | `_processed` | timestamp | history: when it was popped or committed |
    | `_expires` | timestamp | history: when it may be deleted |
    | `payload` | string | the payload, as JSON |
    | `_payload` | binary | only in a schema: the BSON of `{"payload": payload}`, for copies that lose nothing |
    | `_trail` | array of structs | only in a schema: the [hops](trails.md) of an item, without payloads: `queue`, \
`stage`, `by`, `taken`, `settled`, `attempts`, `ended`, `to`; null where it has no trail |
    | `_sequence` | string | only in a schema: the [sequence](sequences.md) in which the item has, or had, its place; \
null for none. A table that has it and is written [enters it](spark-writing.md#in-order) |
    | `_delivery` | string | only in a schema: the parts of a stage's delivery hash, without the stage's name |
    | `_corrupt` | string | only in a schema, with `mode=PERMISSIVE`: the payload of an item that did not fit, as JSON |

    With `.schema(...)` the server sends only the fields that the schema needs. Columns with the names above are
    the envelope, and have the types above; `payload` may have any type and is the payload as a whole. Each
    other column is the field of that name in the payload, and null where the field is missing or null. Documents
    and arrays inside follow the schema in the same way.

    The page "Analysing history with Spark" lists the types and the values that they accept. A value that does not fit
    fails the task with ``ColumnMismatch`` unless `mode` says otherwise; with `PERMISSIVE`, the column `_corrupt`, a
    string, holds the payload of this item as JSON.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "mongoq"

    def schema(self) -> StructType:
        """Return the envelope with the payload as JSON, or with the columns that a sample of payloads has."""
        from mongoq.spark.read.reader import schema_of

        # Spark calls schema for reads and streams alike, before it asks for one of the readers.
        if not STREAM_ONLY & {name.lower() for name in self.options}:
            return schema_of(ReadOptions.parse(self.options))
        options = self._stream_options()
        return schema_of(options.read) if isinstance(options, HistoryStreamOptions) else default_schema()

    def reader(self, schema: StructType) -> MongoqReader:
        """Return the reader for these columns; checks options and columns."""
        from mongoq.spark.read.reader import MongoqReader

        options = ReadOptions.parse(self.options)
        if not options.pushdown:
            return MongoqReader(options, schema)
        require("the option pushdown")
        from mongoq.spark.read.pushdown import FilteringReader

        return FilteringReader(options, schema)

    def streamReader(self, schema: StructType) -> QueueStreamReader | HistoryStream:
        """Return the reader of a stream with these columns; checks options and columns."""
        require("reading streams")
        from mongoq.spark.stream.history_stream import HistoryStream
        from mongoq.spark.stream.queue_stream import QueueStreamReader

        options = self._stream_options()
        if isinstance(options, HistoryStreamOptions):
            return HistoryStream(options, schema)
        return QueueStreamReader(options, schema)

    def _stream_options(self) -> QueueStreamOptions | HistoryStreamOptions:
        options = {name.lower(): value for name, value in self.options.items()}
        if options.get("view", "").lower() == "history":
            return HistoryStreamOptions.parse(options)
        return QueueStreamOptions.parse(options)

    def writer(self, schema: StructType, overwrite: bool) -> MongoqWriter:
        """Return the batch writer for these columns (``WriteOptions``); checks options, columns and the server."""
        from mongoq.spark.write.write_options import WriteOptions
        from mongoq.spark.write.writer import MongoqWriter

        return MongoqWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MongoqStreamWriter:
        """Return the stream sink for these columns (``WriteOptions``); checks options, columns and the server."""
        require("writing streams")
        from mongoq.spark.write.stream_writer import MongoqStreamWriter
        from mongoq.spark.write.write_options import WriteOptions

        return MongoqStreamWriter(WriteOptions.parse(self.options, stream=True), schema, overwrite=overwrite)
