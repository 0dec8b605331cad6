"""What a query of Spark asks of a stream, without Spark."""

from __future__ import annotations

from typing import Any


class Query:
    """A query that reads the queue ``orders`` by one claim after the other, with a broker of its own."""

    def __init__(self, uri: str, database: str, *, consumer: str = "etl", **options: str) -> None:
        from pyspark.sql.streaming.datasource import ReadAllAvailable
        from pyspark.sql.types import StringType, StructType

        from pyspark_mongoq import DefaultSource

        place = {"uri": f"{uri}&appName={consumer}", "database": database, "queue": "orders"}
        source = DefaultSource({**place, "consumer": consumer, "missing": "empty", **options})
        self._all = ReadAllAvailable()
        self._reader: Any = source.streamReader(StructType().add("_id", StringType()))
        self._start = self._reader.initialOffset()
        self._end = self._start

    def claim(self) -> list[str]:
        """Claim the next batch, which settles the one before, and return the ids of its items."""
        self._start = self._end
        self._end = self._reader.latestOffset(self._start, self._all)
        parts = self._reader.partitions(self._start, self._end)
        return [id for part in parts for rows in self._reader.read(part) for id in rows.column("_id").to_pylist()]

    def settle(self) -> None:
        self._reader.commit(self._end)

    def settle_before(self) -> None:
        """Settle the batch before the last one once more."""
        self._reader.commit(self._start)

    def stop(self) -> None:
        """End the query: it keeps what it has claimed."""
        self._reader.stop()
