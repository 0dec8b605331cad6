"""Dumps: files that hold all documents of a collection, in canonical extended JSON, one on a line.

The first line is a head: the version of mongoq, that of the server, the time by the clock of the writer, the indexes.
The form keeps types and the order of fields.

Dates are loaded as they were written. Shifting them to the present would break what mongoq derives from them: the id of
a replayed copy is a hash of the date of its original. Instead, the writer runs on a virtual clock far in the future,
and the tests go on with a virtual clock that starts where the writer stopped. The TTL monitor uses the clock of the
server, so it deletes none of the documents, in whatever year the tests run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from bson import Binary, Int64, ObjectId, json_util
from bson.binary import UuidRepresentation
from bson.json_util import JSONMode, JSONOptions
from bson.max_key import MaxKey

__all__ = ["HERE", "Dump", "by_kind", "dumped", "fields", "kind", "loaded"]

HERE = Path(__file__).parent
OPTIONS = JSONOptions(json_mode=JSONMode.CANONICAL, tz_aware=True, uuid_representation=UuidRepresentation.STANDARD)
OPAQUE = frozenset(("payload", "headers", "value", "position"))
"""Fields with values of the user."""
TYPES = (
    (bool, "bool"),
    (Int64, "long"),
    (int, "int"),
    (float, "double"),
    (str, "string"),
    (datetime, "date"),
    (ObjectId, "objectId"),
    (UUID, "uuid"),
    (bytes | Binary, "binary"),
    (MaxKey, "maxKey"),
    (type(None), "null"),
)
"""Types as the server names them."""


@dataclass(frozen=True)
class Dump:
    """One file; ``now`` is the time by the clock of the writer."""

    mongoq: str
    server: str
    now: datetime
    indexes: list[dict[str, Any]]
    documents: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Dump:
        head, *documents = (json_util.loads(line, json_options=OPTIONS) for line in path.read_text().splitlines())
        return cls(**head, documents=documents)

    def write(self, path: Path) -> None:
        head = {name: getattr(self, name) for name in ("mongoq", "server", "now", "indexes")}
        lines = [json_util.dumps(document, json_options=OPTIONS) for document in (head, *self.documents)]
        # tracebacks name files; where the sources lie on the writing machine is nothing to keep
        path.write_text("".join(f"{line}\n" for line in lines).replace(f"{HERE.parents[1]}/", ""))


def dumped(collection: Any, *, mongoq: str, now: datetime) -> Dump:
    """Read all of a collection in one snapshot, sorted by type and value of the ids."""
    client = collection.database.client
    with client.start_session(snapshot=True) as session:
        documents = sorted(
            collection.find(session=session), key=lambda document: (type(document["_id"]).__name__, document["_id"])
        )
    indexes = sorted(map(dict, collection.list_indexes()), key=lambda index: index["name"])
    return Dump(mongoq, client.server_info()["version"], now, indexes, documents)


def loaded(dump: Dump, collection: Any) -> None:
    """Create a collection with the documents and indexes of a dump."""
    specifications = [
        {name: value for name, value in index.items() if name not in ("v", "ns")}
        for index in dump.indexes
        if index["name"] != "_id_"
    ]
    collection.database.command("createIndexes", collection.name, indexes=specifications)
    collection.insert_many(dump.documents)


def kind(document: Mapping[str, Any]) -> str:
    """Return the kind of a document: of a control document the prefix of its id, of an item its queue and state."""
    id = document["_id"]
    if isinstance(id, str):
        return id if id.startswith("lease:") else f"{id.partition(':')[0]}:"
    if "processed" in document:
        return f"{document['q']}, {'history' if 'payload' in document else 'stub'}"
    return f"{document['q']}, {'reserved' if document['reserved'] else 'waiting'}"


def fields(document: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Yield the path and type of each field; of values of the user the path alone."""
    for name, value in document.items():
        path = f"{within}{name}"
        if name in OPAQUE:
            yield path
        else:
            yield from _typed(path, value)


def _typed(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield f"{path}: document"
        yield from fields(value, f"{path}.")
    elif isinstance(value, list):
        yield f"{path}: array"
        for element in value:
            yield from _typed(f"{path}[]", element)
    else:
        yield f"{path}: {next(name for type_, name in TYPES if isinstance(value, type_))}"


def by_kind(dump: Dump) -> dict[str, set[str]]:
    """Return the fields of the documents of each kind."""
    fields_by_kind: dict[str, set[str]] = {}
    for document in dump.documents:
        fields_by_kind.setdefault(kind(document), set()).update(fields(document))
    return fields_by_kind
