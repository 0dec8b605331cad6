"""Tables as Spark hands them to a writer, and the writer's own code run on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DayTimeIntervalType, StructField, StructType

from mongoq.spark import clients
from mongoq.spark.types.column import arrow_field
from mongoq.spark.write.column_roles import ColumnRoles
from mongoq.spark.write.write_options import WriteOptions
from mongoq.spark.write.write_rows import Task, WrittenRows, write


def table(ddl: str, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows as a record batch of a schema as Spark writes it."""
    schema = pa.schema([_field(field) for field in StructType.fromDDL(ddl).fields])
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _field(field: StructField) -> pa.Field:
    if isinstance(field.dataType, DayTimeIntervalType):  # which no reader yields
        return pa.field(field.name, pa.duration("us"))
    return arrow_field(field)


@dataclass(frozen=True)
class Target:
    """A collection to write to."""

    store: Any

    @property
    def documents(self) -> list[dict[str, Any]]:
        """All items, in the order of claims."""
        return list(self.store.collection.find({"q": {"$exists": True}}).sort([("priority", 1), ("when", 1)]))

    @property
    def payloads(self) -> list[Any]:
        return [each["payload"] for each in self.documents if "payload" in each]

    def options(self, **options: Any) -> dict[str, str]:
        filled_in: dict[str, str] = self.store.options(queue=None, **options)
        return filled_in

    def write(
        self,
        ddl: str,
        *batches: Sequence[Sequence[Any]],
        to: str | None = "orders",
        job: tuple[str, ...] | None = ("run", "1"),
        partition: int = 0,
        **options: Any,
    ) -> WrittenRows:
        """Write rows as a task does."""
        parsed = WriteOptions.parse(self.options(to=to, **options), stream="settle" not in options)
        layout = ColumnRoles(StructType.fromDDL(ddl), parsed)
        return write((table(ddl, rows) for rows in batches), layout, parsed, Task(partition), job)

    @property
    def broker(self) -> Any:
        """The broker that tasks of this process use."""
        return clients.broker_at(WriteOptions.parse(self.options(to="any")).place)


@contextmanager
def target_in(store: Any) -> Iterator[Target]:
    """Write to an empty collection; the broker that this process made for it is closed."""
    store.collection.drop()
    before = set(clients._brokers)
    yield Target(store)
    for key in set(clients._brokers) - before:
        clients._brokers.pop(key).close()
