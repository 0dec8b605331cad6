"""The stream sink: a batch that is written again is one batch, whether it pushes or settles."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.tables import Target


class Files:
    """A folder of JSON files that a query reads as a stream, and the checkpoint of the query."""

    def __init__(self, spark: Any, path: Path) -> None:
        self._spark = spark
        self.folder, self.checkpoint = path / "in", path / "checkpoint"
        self.folder.mkdir()

    def add(self, *rows: dict[str, Any]) -> None:
        text = "\n".join(map(json.dumps, rows))
        (self.folder / f"{uuid.uuid4().hex}.json").write_text(text)

    def read(self, ddl: str) -> Any:
        return self._spark.readStream.schema(ddl).json(str(self.folder))

    def forget_the_commit_of(self, batch: int) -> None:
        """Leave the checkpoint as a driver does that died before the batch was committed."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink()


@pytest.fixture
def files(spark: Any, tmp_path: Path) -> Files:
    return Files(spark, tmp_path)


@pytest.fixture
def run(target: Target, files: Files) -> Callable[..., None]:
    """Write what there is of a stream, and return when all is written."""

    def run(frame: Any, *, each: Any = None, mode: str = "append", **options: Any) -> None:
        writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(files.checkpoint))
        if each is None:
            writer = writer.format("mongoq").options(**target.options(**{"to": "orders", **options}))
        else:
            writer = writer.foreachBatch(each)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()

    return run


def test_rows_are_settled_once_and_others_pushed(target: Target, files: Files, run: Any) -> None:
    queue = target.broker.queue("raw")
    queue.push_many([{"n": n} for n in range(10)])
    items = queue.reserve_many(10)
    rows_held = [{"_id": str(item.id), "_token": str(item.token), "n": item.payload["n"]} for item in items]
    moves = [row | {"_to": "priced"} for row in rows_held[:6]]
    files.add(*moves, *rows_held[6:], {"n": 100, "_to": "priced"})
    ddl = "_id string, _token string, _to string, n int"
    run(files.read(ddl), to=None)
    files.forget_the_commit_of(0)
    run(files.read(ddl), to=None)
    assert sorted(each["n"] for each in target.payloads) == [0, 1, 2, 3, 4, 5, 100]
    assert {each["q"] for each in target.documents} == {"priced"}


def test_the_output_mode_is_append(target: Target, files: Files, run: Any) -> None:
    files.add({"n": 1})
    counts = files.read("n int").groupBy("n").count()
    with pytest.raises(Exception, match="mode: rows are pushed to a queue, and overwrite nothing"):
        run(counts, mode="complete")
    assert target.documents == []


def test_foreach_batch_writes_once_under_a_label(target: Target, files: Files, run: Any) -> None:
    queue = target.broker.queue("raw")
    queue.push({"n": 0})
    item = queue.reserve()
    rows = [{"n": n % 3} for n in range(9)]
    files.add(*rows, {"_id": str(item.id), "_token": str(item.token), "n": 7})

    def write(frame: Any, options: dict[str, Any]) -> None:
        frame.write.format("mongoq").mode("append").options(**target.options(to="orders", **options)).save()

    def labelled(frame: Any, _batch: int) -> None:
        write(frame, {"label": "orders", "settle": "true"})

    def unlabelled(frame: Any, _batch: int) -> None:
        write(frame, {"settle": "true"})

    stream = files.read("_id string, _token string, n int")
    with pytest.raises(Exception, match="label: in foreachBatch a batch may be written twice: name this write"):
        run(stream, each=unlabelled)
    assert target.payloads == [{"n": 0}]
    for _ in range(2):
        run(stream, each=labelled)
        files.forget_the_commit_of(0)
    assert Counter(each["n"] for each in target.payloads) == Counter({0: 3, 1: 3, 2: 3, 7: 1})
    assert [each["_id"] for each in target.documents if each["payload"] == {"n": 7}] == [item.id]
