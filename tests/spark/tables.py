"""Tables that are written as Spark's tasks write them: by the writer of the format, without a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mongoq
from tests.spark.ddl import schema_of

__all__ = ["Target", "target_in"]


@dataclass(frozen=True)
class Target:
    """A collection to write to."""

    store: Any
    broker: mongoq.Broker

    @property
    def documents(self) -> list[dict[str, Any]]:
        """All items, in the order of claims."""
        return list(self.store.collection.find({"q": {"$exists": True}}).sort([("priority", 1), ("when", 1)]))

    @property
    def payloads(self) -> list[Any]:
        return [each["payload"] for each in self.documents if "payload" in each]

    def options(self, **options: Any) -> dict[str, str]:
        filled_in: dict[str, str] = self.store.options(**{"queue": None, **options})
        return filled_in

    def writer(self, ddl: str, *, overwrite: bool = False, **options: Any) -> Any:
        """Return what Spark sends to the tasks of a write."""
        from pyspark_mongoq import DefaultSource

        given = {"to": "orders", "settle": "true", "label": "run", **options}
        return DefaultSource(self.options(**given)).writer(schema_of(ddl), overwrite)

    def write(self, ddl: str, *batches: Sequence[Sequence[Any]], **options: Any) -> Any:
        """Write rows as a task does; with the same ``label`` it is the same write, run again."""
        return self.writer(ddl, **options).write(iter([_table(ddl, rows) for rows in batches]))


def _table(ddl: str, rows: Sequence[Sequence[Any]]) -> Any:
    """Return rows as a record batch of a schema as Spark writes it."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(schema_of(ddl), timezone="UTC")
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@contextmanager
def target_in(store: Any) -> Iterator[Target]:
    """Write to a collection that is empty at first."""
    store.collection.drop()
    with mongoq.Broker(store.collection) as broker:
        yield Target(store, broker)
