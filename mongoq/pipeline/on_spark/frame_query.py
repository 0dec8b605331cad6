"""The streaming queries of frame stages: one for each stage and queue.

One query at a time reads the queue of a frame stage, in this process and in others. A query of another process has the
consumer's name under a lease. Spark would end a running query of this process when a second one starts with the same
checkpoint, so the second one is not started.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

import mongoq.spark
from mongoq.errors import ArgumentInvalid, ConsumerBusy, StageStopped
from mongoq.model.arguments import duration
from mongoq.model.stream_claim import stream_id
from mongoq.pipeline.graph.graph import Frame, Graph, Stage
from mongoq.pipeline.on_spark.frame_batch import ATTEMPTS, FrameBatches
from mongoq.pipeline.on_spark.frame_settler import HASH, ID, FramePart
from mongoq.pipeline.on_spark.task import ENDED, has_ended
from mongoq.pipeline.run.consumers import make_stage_handle
from mongoq.pipeline.run.progress import PipelineCounts, StageCounts
from mongoq.protocol_threads.base.find import find_one
from mongoq.spark.clients import broker_at
from mongoq.spark.errors import ExecutorError
from mongoq.spark.raw_options import Location
from mongoq.spark.stream.stream_options import StageOption
from mongoq.spark.types.convert import PERMISSIVE, too_deep
from mongoq.spark.types.envelope_columns import CORRUPT, DELIVERY, PAYLOAD

logger = logging.getLogger("mongoq.spark")

BUSY_ERROR = f"{ConsumerBusy.__module__}.{ConsumerBusy.__qualname__}"
"""Name of the error in Spark's text when another process has the consumer."""

_running_queries: dict[tuple[Location, str], FrameQuery] = {}
"""Queries of this process, by place and consumer."""
_lock = threading.Lock()
BATCH_GRACE_SECONDS = 25.0
"""Seconds that a batch may take to finish after the query was asked to stop."""
CHECK_SECONDS = 0.1
SLOW_START = "Python worker failed to connect back"
"""Spark's message when the Python process of a streaming source has not started within 10 s. Spark has no setting for
it (``PythonWorkerFactory`` of Spark 4.2). A busy machine may need longer.
"""
MAX_RESTARTS = 20
OWN_COLUMNS = {
    ID: StringType(),
    "_token": StringType(),
    ATTEMPTS: IntegerType(),
    DELIVERY: StringType(),
    CORRUPT: StringType(),
}
"""Columns that are read in addition to the columns of the schema."""


def _release(key: tuple[Location, str]) -> None:
    with _lock:
        _running_queries.pop(key, None)


def _busy(place: Location, consumer: str) -> ConsumerBusy:
    """Return the error with the owner and the end of the lease, from the control document of the consumer."""
    broker = broker_at(place.of_driver)
    document = broker._run(find_one, {"_id": stream_id(consumer)}, {"by": 1, "until": 1}) or {}
    return ConsumerBusy(consumer, document.get("by"), document.get("until"))


class FrameQuery:
    """The streaming query of a frame stage at one of its queues.

    The outcomes of a batch's items are written below the checkpoint before the first item is settled. So a driver that
    is killed and started again with the same checkpoint gives each item the same outcome, once. The checkpoint is a
    folder for this query alone; ``every`` is the number of seconds between the beginnings of two batches.

    Raises:
        ArgumentInvalid: Spark cannot read the schema, or a column has an unsupported type.
    """

    def __init__(
        self,
        spark: SparkSession,
        place: Location,
        graph: Graph,
        stage: Stage,
        source: str,
        *,
        checkpoint: str,
        every: float | None = None,
    ) -> None:
        assert stage.frame is not None
        checkpoint = checkpoint.rstrip("/")
        self._spark = spark
        self._frame = stage.frame
        self._part = FramePart.of(place, graph, stage, source, path=f"{checkpoint}/results")
        self._checkpoint = f"{checkpoint}/query"
        self._interval = f"{round((every or 0) * 1000)} milliseconds"
        schema = _schema_of(stage.name, stage.frame)
        # The columns of the schema, all nullable, and the columns that settling needs.
        fields = [StructField(each.name, each.dataType, metadata=each.metadata) for each in schema.fields]
        fields = [field for field in fields if field.name != HASH]
        names = {field.name for field in fields}
        own = (StructField(name, type) for name, type in OWN_COLUMNS.items() if name not in names)
        self._schema = StructType([*fields, *own])
        self._batches = FrameBatches(
            self._part,
            stage.handler,
            [name for name in schema.fieldNames() if name not in (ID, ATTEMPTS, HASH)],
            tells_misfits=CORRUPT not in schema.fieldNames(),
            stopping=lambda: self._stopping,
        )
        self._turn = threading.Lock()
        self._restarts = 0
        self._ending = self._stopping = self._worked = False
        self._failure: BaseException | None = None
        self._query: Any = None

    def __repr__(self) -> str:
        """Return the names of the stage and the queue."""
        return f"<{type(self).__name__} of stage {self._part.name!r} at {self._part.source!r}>"

    @property
    def consumer(self) -> str:
        """Name under which the query reads the queue."""
        return self._part.consumer

    @property
    def is_active(self) -> bool:
        """True while the query runs; nothing runs after Spark has ended."""
        return self._query is not None and not has_ended(self._spark) and bool(self._query.isActive)

    def find_failure(self) -> BaseException | None:
        """Return the error that has ended the query, except a stop: ``StageStopped``, or one of Spark or the server.

        A query that Spark gave too little time to start its Python is started again. It has read and settled nothing. A
        failure within a batch is different: ``_work_off`` has recorded it.
        """
        # In this order: a batch records its failure before the query ends.
        if self._query is None or self._ending or self.is_active or self._failure is not None:
            return self._failure
        if has_ended(self._spark):
            return ExecutorError(ENDED)
        part, error = self._part, self._query.exception()
        if SLOW_START in str(error) and self._restarts < MAX_RESTARTS:
            self._restarts += 1
            logger.warning("%r is started again: Spark waits 10 s for its Python, which needed longer", self)
            try:
                self._start()
            except Exception as failed:  # for example, the session has ended meanwhile
                self._failure = failed
        elif BUSY_ERROR in str(error):
            self._failure = _busy(part.place, part.consumer)
        elif error is not None:
            self._failure = error
        else:
            where = f"stage {part.name!r} at queue {part.source!r}"
            self._failure = ExecutorError(f"the query of {where} was stopped, and not by its run; start the run again")
        return self._failure

    def counts(self) -> Counter[str]:
        """Return the number of items settled so far, by how they were settled, in the terms of a worker."""
        return Counter(self._batches.counts)

    def start(self) -> None:
        """Start the query; returns when it runs. Errors of its batches are reported by ``find_failure``.

        Raises:
            ConsumerBusy: this process has a query with this consumer already.
            ArgumentInvalid: Spark cannot write to the folder of the checkpoint.
        """
        key = self._part.place, self.consumer
        with _lock:
            other = _running_queries.get(key)
            if other is not None and not (other._query is not None and not other._query.isActive):
                raise _busy(*key)
            _running_queries[key] = self
        try:
            self._start()
        except BaseException as error:
            _release(key)
            # An error of Java's files: most likely the checkpoint's folder.
            if isinstance(error, Py4JJavaError) and error.java_exception.getClass().getName().startswith("java.io."):
                problem = f"stage {self._part.name!r}: Spark cannot write there: {error.java_exception.getMessage()}"
                raise ArgumentInvalid("checkpoint", problem) from None
            raise

    def _start(self) -> None:
        mongoq.spark.register(self._spark)
        reader = self._spark.readStream.format("mongoq").options(**self._options()).schema(self._schema)
        writer = reader.load().writeStream.foreachBatch(self._work_off)
        writer = writer.option("checkpointLocation", self._checkpoint).trigger(processingTime=self._interval)
        self._query = writer.start()

    def stop(self, grace: float = BATCH_GRACE_SECONDS) -> None:
        """End the query in good order, and release the items that it holds at once; their attempts are not counted.

        A batch under way goes on for at most ``grace`` seconds. Its items that are not settled by then come back;
        settled items stay settled. This also holds after Spark has ended, because then no query settles anything.
        """
        if self._query is None:
            return
        self._ending = True
        # A batch holds the lock until it is done: the query ends between two batches if the batch is done in time.
        turn = self._turn.acquire(timeout=grace)
        self._stopping = True
        try:
            if not has_ended(self._spark):
                self._query.stop()
        finally:
            if turn:
                self._turn.release()
            _release((self._part.place, self.consumer))
            if self._worked:  # otherwise the claim belongs to another query, or there is none
                broker_at(self._part.place.of_driver).release_claims(self.consumer)

    def _work_off(self, frame: DataFrame, _number: int) -> None:
        """Process a batch. To Spark a return means that the batch is done, so its remaining items are settled."""
        # In short waits, so that a stopped query does not hang here.
        while not self._turn.acquire(timeout=CHECK_SECONDS):
            self._check_going_on()
        self._worked = True
        try:
            self._check_going_on()
            self._batches.work_off(frame)
        except BaseException as error:
            if not (self._stopping or isinstance(error, _Ended)):
                self._failure = error
            raise
        finally:
            self._turn.release()

    def _check_going_on(self) -> None:
        if self._ending:
            raise _Ended(f"{self!r} is stopped; this batch comes again")

    def _options(self) -> dict[str, str]:
        part, frame = self._part, self._frame
        handle = make_stage_handle(part.graph, part.stage, broker_at(part.place.of_driver).queue(part.source))
        lease = part.stage.options.get("lease")
        options = {
            "uri": part.place.uri,
            "database": part.place.database,
            "collection": part.place.collection,
            "queue": part.source,
            "consumer": part.consumer,
            "maxItems": frame.items,
            "partitions": frame.partitions,
            "mode": PERMISSIVE,
            "missing": "empty",
            "lease": None if lease is None else duration(lease, "lease").total_seconds(),
            "setup": part.place.setup,
            "stage": StageOption.of(handle._context.stage, handle._context.overriding).text(),
        }
        return {name: str(value) for name, value in options.items() if value is not None}


class _Ended(Exception):
    """Ends a batch of a query that was stopped; nothing is wrong with the batch."""


def _schema_of(stage: str, frame: Frame) -> StructType:
    if frame.schema is None:
        return StructType([StructField(PAYLOAD, StringType())])
    try:
        schema = StructType.fromDDL(frame.schema) if isinstance(frame.schema, str) else frame.schema
    except Exception as error:  # an error of Spark's parser
        first = str(error).strip().splitlines()[0]
        raise ArgumentInvalid("schema", f"stage {stage!r}: Spark cannot read {frame.schema!r:.200}: {first}") from None
    if not isinstance(schema, StructType):
        problem = f"stage {stage!r}: columns with names, such as 'carrier string', not {frame.schema!r:.200}"
        raise ArgumentInvalid("schema", problem)
    for field in schema.fields:
        if deep := too_deep(field.name, field.dataType):
            raise ArgumentInvalid("schema", f"stage {stage!r}: field {deep}; make it a string, which holds it as JSON")
    return schema


class FrameQueries:
    """Starts the queries of a run, each with its stage's name, watches them, and stops them.

    Attributes:
        failure: error that has ended a query, other than a stage that stopped by itself; set by ``look``.
        stops: stages that have stopped by themselves, by name; set by ``look``.
    """

    def __init__(self, queries: Iterable[tuple[str, FrameQuery]]) -> None:
        self.failure: BaseException | None = None
        self.stops: dict[str, StageStopped] = {}
        self._queries = list(queries)
        self._counts: dict[str, StageCounts] = {}

    def start(self) -> None:
        """Start the queries, all or none."""
        for stage, query in self._queries:
            try:
                query.start()
            except BaseException as error:
                error.add_note(f"while the query of frame stage {stage!r} was started")
                self.end(0)
                raise

    def look(self) -> None:
        """Update the counts, and record the queries that have ended."""
        counted: dict[str, Counter[str]] = {}
        for stage, query in self._queries:
            counted[stage] = counted.get(stage, Counter()) + query.counts()
            error = query.find_failure()
            if not isinstance(error, StageStopped):
                self.failure = self.failure or error
            elif stage not in self.stops:
                logger.error("stage %r has stopped by itself: %s", stage, error)
                self.stops[stage] = error
        now = time.time()
        for stage, endings in counted.items():
            before = self._counts.get(stage, StageCounts())
            if endings != before.endings:
                before = StageCounts(endings, first=before.first or now, last=now)
            self._counts[stage] = StageCounts(endings, 0, before.first, before.last, stage in self.stops)

    @property
    def have_stopped(self) -> bool:
        """True when all of them have stopped by themselves, or there are none."""
        return all(stage in self.stops for stage, _ in self._queries)

    @property
    def counts(self) -> PipelineCounts:
        """Counts at the last ``look``."""
        return PipelineCounts(dict(self._counts))

    def end(self, grace: float) -> None:
        """Stop the queries in good order, each within ``grace`` seconds: the items that they hold are released."""
        for stage, query in self._queries:
            try:
                query.stop(grace)
            except Exception as error:
                logger.warning("the query of stage %r could not be stopped in good order: %r", stage, error)
        self.look()
