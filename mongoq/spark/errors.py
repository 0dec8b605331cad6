"""Errors that only the Spark side raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mongoq.data.encoding.error_text import escape_controls
from mongoq.errors import MongoqError, name_ids

CALLING = "An error occurred while calling "
"""Beginning of Py4J's error text; the error itself comes on a later line."""

INSTALL = "install the extra mongoq-driver[spark] (pip install '.[spark]' in a checkout)"


class SparkUnavailable(MongoqError, ImportError):
    """A package or program that Spark needs is missing, or is too old.

    Attributes:
        missing: name of the package or program: ``pyspark``, ``pyarrow``, ``Java``, or the Python that Spark runs; or
            the use of Spark that the installed PySpark is too old for, such as ``reading streams``.
        problem: what is wrong with it.
    """

    def __init__(self, missing: str, problem: str = "is not installed", remedy: str = INSTALL) -> None:
        super().__init__(f"{missing} {problem}: {remedy}")
        self.missing = missing
        self.problem = problem


class ColumnMismatch(MongoqError, ValueError):
    """A column cannot hold a stored value without loss. The task fails; no value becomes null silently.

    Spark passes on the text of an error, not the object. The text does not quote the value, which may be private.

    Attributes:
        item_id: id of the item that holds the value.
        column: the column, with the path below it, such as ``lines[2].price``.
        type: Spark type at this path.
        problem: kind of the stored value.
    """

    def __init__(self, item_id: Any, column: str, type: str, problem: str) -> None:
        super().__init__(
            f"item {item_id}: column {column!r} of type {type} cannot hold {problem}; "
            f"give the column another type, read the column 'payload' as a string, or choose another mode"
        )
        self.item_id = item_id
        self.column = column
        self.type = type
        self.problem = problem


class RowRefused(MongoqError, ValueError):
    """A row cannot be written. The task fails; rows that it pushed before stay, and are not pushed twice.

    Spark passes on the text of an error, not the object. The text does not quote the value, which may be private.

    Attributes:
        partition: number of the partition that holds the row.
        row: position of the row in the partition, from 0.
        column: the column, with the path below it, such as ``lines[2].price``.
        problem: what is wrong with the value.
    """

    def __init__(self, partition: int, row: int, column: str, problem: str) -> None:
        super().__init__(f"row {row} of partition {partition}: column {column!r}: {problem}; mend the row, or drop it")
        self.partition = partition
        self.row = row
        self.column = column
        self.problem = problem


class RowsLost(MongoqError):
    """Rows of a write hold reservations that are over: the items were settled before, or have another holder.

    With ``lost=ignore`` this is a warning in the log, and the rows are left out. A batch that is written again finds
    all items lost that it has settled before. So does a write whose reply was lost: it may have settled them itself.

    Attributes:
        item_ids: ids of the items.
    """

    def __init__(self, item_ids: Sequence[Any]) -> None:
        super().__init__(
            f"of {len(item_ids)} of the rows the reservation is over: settled before, as all are in a batch that is "
            f"written again, or taken by others ({name_ids(item_ids)}); they are left out"
        )
        self.item_ids = list(item_ids)


class ExecutorError(MongoqError):
    """An error of a handler in an executor, as text, because its type may exist in the executor only."""


class ExecutorsUnready(MongoqError):
    """Executors cannot work on a pipeline: modules are missing, or the server is out of reach. Nothing has started.

    Attributes:
        pipeline: name of the pipeline.
        problem: what is wrong, in one line.
    """

    def __init__(self, pipeline: str, problem: Exception | str) -> None:
        text = problem if isinstance(problem, str) else in_short(problem)
        super().__init__(
            f"the executors cannot work on pipeline {pipeline!r}: {text}; they need mongoq-driver[spark] in the Python "
            f"that PYSPARK_PYTHON names (else Spark runs the first python3 on the path), the modules of the handlers "
            f"(installed there, or shipped by --py-files or sparkContext.addPyFile), and a way to the server"
        )
        self.pipeline = pipeline
        self.problem = text

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments: the message is made of them."""
        return type(self), (self.pipeline, self.problem)


def in_short(error: BaseException) -> str:
    """Return the line in which Spark quotes the Python error of a task, or the first line of its text."""
    lines = str(error).splitlines()
    # Spark puts the traceback of the task into its own text; the first line after its frames has the error.
    frames = [place for place, line in enumerate(lines) if line.lstrip().startswith("Traceback (most recent call")]
    for line in lines[frames[-1] + 1 :] if frames else ():
        if line.strip() and not line.startswith((" ", "\t")):
            return escape_controls(line.strip())
    texts = (line.strip().removeprefix(": ") for line in lines if not line.startswith(CALLING))
    return escape_controls(next(filter(None, texts), type(error).__name__))
