"""``python -m bench.spark_bare WAY URI DATABASE COLLECTION ITEMS PART PARTS IDS``: one process of the bare driver.

``IDS`` are the ids between the ranges of a read, separated by commas.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import bson
import pyarrow as pa
from bson import ObjectId
from bson.codec_options import CodecOptions
from pymongo import MongoClient, WriteConcern

from bench.bare import Bare
from bench.bare_many import HeldMany, move_many, reserve_many
from bench.drain import begin
from bench.spark_rows import FIELDS, HISTORY, SOURCE, TARGET, document
from mongoq.spark.read.reader import id_ranges

__all__ = ["WAYS"]

ROWS = 10_000
CLAIMED = 1_000
CODEC: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)
TABLE = pa.schema(
    [
        ("customer", pa.string()),
        ("quantity", pa.int32()),
        ("price", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("country", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one process: ``part`` of ``parts``.

    Attributes:
        ids: the ids between the ranges of a read.
    """

    items: int
    part: int
    parts: int
    ids: list[ObjectId]


def read(collection: Any, share: Share) -> int:
    """Read this process's share of the Spark reader's ranges, by raw batches into Arrow tables."""
    fields = {f"payload.{field}": 1 for field in FIELDS}
    done = 0
    for each in id_ranges(share.ids)[share.part :: share.parts]:
        filter = {"q": HISTORY, "processed": {"$type": "date"}, **({"_id": each} if each else {})}
        for raw in collection.find_raw_batches(filter, fields, batch_size=ROWS, hint="_id_"):
            done += _table(bson.decode_all(raw, CODEC)).num_rows
    return done


def _table(documents: list[dict[str, Any]]) -> pa.Table:
    columns = [pa.array([document["payload"].get(field.name) for document in documents], field.type) for field in TABLE]
    return pa.Table.from_arrays(columns, schema=TABLE)


def write(collection: Any, share: Share) -> int:
    """Insert our share."""
    begin, end = (share.items * part // share.parts for part in (share.part, share.part + 1))
    for start in range(begin, end, CLAIMED):
        now = datetime.now(UTC)
        documents = [document(TARGET, number, now) for number in range(start, min(end, start + CLAIMED))]
        collection.insert_many(documents, ordered=False)
    return end - begin


def stream(collection: Any, share: Share) -> int:
    """Claim and move until nothing is left."""
    bare, done = Bare(collection, SOURCE, TARGET, f"bench:{share.part}"), 0
    while documents := reserve_many(bare, CLAIMED):
        move_many(bare, HeldMany([each["_id"] for each in documents], documents[0]["token"], []))
        done += len(documents)
    return done


WAYS: dict[str, Callable[[Any, Share], int]] = {"read": read, "write": write, "stream": stream}


def main() -> None:
    way, uri, database, name, items, part, parts, ids = sys.argv[1:]
    share = Share(int(items), int(part), int(parts), [ObjectId(id) for id in ids.split(",") if id])
    with MongoClient[Any](uri, tz_aware=True) as client:
        collection = client[database].get_collection(name, write_concern=WriteConcern(w="majority"))
        collection.find_one({})
        began = begin()
        done = WAYS[way](collection, share)
        ended = time.monotonic()
    print(json.dumps({"began": began, "ended": ended, "done": done}))


if __name__ == "__main__":
    main()
