"""Large reads for tables: counts, split points, and documents by whole wire batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Self, TypeVar, cast

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, MongoClient
from pymongo.collection import Collection
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    ConnectionFailure,
    InvalidName,
    OperationFailure,
    ServerSelectionTimeoutError,
)
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Nearest, Primary, PrimaryPreferred, Secondary, SecondaryPreferred

from mongoq.data.encoding.codec import codec_options
from mongoq.drivers.connection_string import (
    advise_escaping,
    explain_refusal,
    has_option,
    list_connection_errors,
    list_hosts,
    make_client,
    redact_error,
)
from mongoq.drivers.errors import LOGIN_REFUSED_CODES, UNAUTHORIZED_CODE, describe_missing_right
from mongoq.errors import ArgumentInvalid, AuthenticationFailed, ServerUnavailable
from mongoq.spark.documents import Document, decode, split_reply
from mongoq.sync import Broker

DATABASE = "mongoq"
SELECTION_SECONDS = 5.0
SELECTION_OPTION = "serverSelectionTimeoutMS"
SAMPLES = 2_000
"""Ids sampled for each range: the sizes of the ranges then differ by 2 %, hardly ever by more than 8 %."""
MIN_SAMPLED_DOCUMENTS = 500_000
"""Documents from which ids are sampled, not sorted: sorting takes half as long again, and needs memory."""
INDEX_END_BYTES = 8 * 1024 * 1024
"""Bytes after which one end of an index is no longer read."""
INDEX_END_ROWS = 100

PREFERENCES = {
    "primary": Primary,
    "primaryPreferred": PrimaryPreferred,
    "secondary": Secondary,
    "secondaryPreferred": SecondaryPreferred,
    "nearest": Nearest,
}
"""Read preferences, by their names in URIs."""

Filter = Mapping[str, Any]
T = TypeVar("T")


class Scan:
    """One client on one collection, for reading only; its ``with`` block closes it.

    Reads have majority read concern, and go to the primary unless ``preference`` or the URI names another read
    preference. No command is sent before the first method call.
    """

    def __init__(
        self,
        uri: str,
        database: str | None,
        collection: str,
        *,
        patience: float = SELECTION_SECONDS,
        preference: str | None = None,
    ) -> None:
        options: dict[str, Any] = {"tz_aware": True}
        # An option in the URI is the user's choice and wins.
        if not has_option(uri, SELECTION_OPTION):
            options[SELECTION_OPTION] = patience * 1000
        self._client: MongoClient[dict[str, Any]] = make_client(MongoClient, uri, **options)
        self._uri = uri
        self._indexes: Mapping[str, Any] | None = None
        try:
            self._collection = _collection(self._client, database, collection, preference)
        except ArgumentInvalid:
            self._client.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    @contextmanager
    def in_plain_words(self) -> Iterator[None]:
        """Raise errors for a missing server and missing access that have a remedy, without credentials."""
        try:
            yield
        except ConnectionFailure as error:
            servers = list_hosts(self._client, self._uri)
            mode: str = self._collection.read_preference.mongos_mode
            # The kind of server that was needed, if not the primary: other servers may be available.
            if mode != "primary":
                servers += f" for readPreference {mode!r}"
            raise ServerUnavailable(
                f"no usable MongoDB server answered at {servers}: start it, or correct the option uri "
                f"({list_connection_errors(self._client, error, self._uri)}){advise_escaping(self._uri)}"
            ) from error
        except ConfigurationError as error:  # found when the client connects: SRV, modules of a mechanism
            raise ArgumentInvalid("uri", explain_refusal(error, self._uri)) from None
        except OperationFailure as error:
            if error.code in LOGIN_REFUSED_CODES:
                raise AuthenticationFailed(
                    f"the server refused the credentials of the option uri: correct user, password, authSource or "
                    f"authMechanism ({redact_error(error, self._uri)})"
                ) from error
            if error.code == UNAUTHORIZED_CODE:
                raise AuthenticationFailed(
                    f"the user of the option uri may not read {self._collection.full_name}: grant it the role 'read' "
                    f"(the server {describe_missing_right(error)})"
                ) from error
            raise

    def run(self, work: Callable[..., T], *args: Any) -> T:
        """Run a read of the core, which goes to the primary."""
        with Broker(self._collection) as broker:
            return broker._run(work, *args)

    @property
    def name(self) -> str:
        """Database and collection."""
        return self._collection.full_name

    def now(self) -> datetime:
        """Return the server's time (``hello``, sent again once when its reply is lost, like the driver's own reads)."""
        try:
            return self._ask_now()
        # No server was found within the timeout: a second try would only double the wait.
        except ServerSelectionTimeoutError:
            raise
        except AutoReconnect:
            return self._ask_now()

    def _ask_now(self) -> datetime:
        preference = self._collection.read_preference
        reply = self._collection.database.command("hello", codec_options=codec_options(), read_preference=preference)
        return cast("datetime", reply["localTime"])

    def size(self) -> int:
        """Return the approximate number of documents in the collection, from its metadata."""
        return self._collection.estimated_document_count()

    def index(self, keys: Sequence[str]) -> str | None:
        """Return the name of the ascending index on exactly these keys, if there is one."""
        wanted = [(key, 1) for key in keys]
        if self._indexes is None:
            self._indexes = self._collection.index_information()
        for name, index in self._indexes.items():
            if list(index["key"]) == wanted:
                return name
        return None

    def count(self, filter: Filter, hint: str | None) -> int:
        """Count the matching documents: ``aggregate`` of ``$match`` and ``$group``."""
        return self._collection.count_documents(filter, **_hinted(hint))

    def date(self, filter: Filter, field: str, *, place: int, hint: str | None) -> datetime | None:
        """Return the date at a position in the order of a field, the first at 0; ``None`` beyond the last.

        ``find`` with ``skip`` walks over the keys of the index.
        """
        keys = {field: 1, "_id": 0}
        document = self._collection.find_one(filter, keys, hint=hint, sort=[(field, 1), ("_id", 1)], skip=place)
        return None if document is None else cast("datetime", document[field])

    def names(self, filter: Filter) -> list[str]:
        """Return the queues of the matching documents, each once: ``distinct``."""
        return sorted(name for name in self._collection.distinct("q", filter) if isinstance(name, str))

    def has(self, filter: Filter, *, hint: str | None = None) -> bool:
        """Return whether a document matches: ``find`` of one id."""
        return self._collection.find_one(filter, {"_id": 1}, hint=hint) is not None

    def boundaries(self, filter: Filter, hint: str | None, *, count: int, parts: int) -> list[ObjectId]:
        """Return ids that split the matching documents into about equal parts, ascending; at most ``parts - 1``.

        Only ObjectIds are returned, because ranges compare ids of one type only. ``$bucketAuto`` finds them exactly;
        for many documents a sample of the keys finds them within a few percent. Both walk the keys of the index: a
        random cursor is faster, but prefers pages with few large documents, by a factor of two.
        """
        sample = SAMPLES * parts
        if count >= MIN_SAMPLED_DOCUMENTS and sample < count:
            found = self._of_keys(filter, hint, {"$match": {"$sampleRate": sample / count}})
            ids = sorted(document["_id"] for document in found)
            places = [len(ids) * part // parts for part in range(1, parts)]
            return sorted({ids[place] for place in places}) if ids else []
        buckets = self._of_keys(filter, hint, {"$bucketAuto": {"groupBy": "$_id", "buckets": parts}})
        return [bucket["_id"]["min"] for bucket in buckets][1:]

    def _of_keys(self, filter: Filter, hint: str | None, stage: dict[str, Any]) -> Iterator[Document]:
        """Run a stage on the ids of the matching documents (``aggregate``); the index alone has them."""
        object_ids = {"$and": [filter, {"_id": {"$type": "objectId"}}]}
        # Projected to _id, so that the index alone answers and no document is fetched.
        pipeline: list[Filter] = [{"$match": object_ids}, {"$project": {"_id": 1}}, stage]
        return self._collection.aggregate(pipeline, allowDiskUse=True, **_hinted(hint))

    def batches(
        self, filter: Filter, projection: Mapping[str, Any] | None, *, hint: str | None, rows: int, naive: bool = False
    ) -> Iterator[list[Document]]:
        """Yield documents in lists of at most ``rows`` and about 4 MB of BSON, or of one document that is larger.

        A reply, of 16 MB at most, is kept as bytes and decoded part by part, so memory does not grow with the number of
        documents. Dates are aware, or with ``naive`` without an offset, in UTC.
        """
        # Raw batches: without them the driver decodes a whole reply, of up to 16 MB, at once.
        with self._collection.find_raw_batches(filter, projection, batch_size=rows, hint=hint) as cursor:
            for raw in cast("Iterator[bytes]", cursor):  # typed as documents, although this cursor yields bytes
                for part in split_reply(raw) if raw else ():
                    yield decode(part, naive=naive)

    def ends(
        self, filter: Filter, projection: Mapping[str, Any] | None, keys: Sequence[str], *, rows: int
    ) -> Iterator[Document]:
        """Yield the first and the last matching documents in an index's order, ``rows`` in all, some of them twice.

        It reads at most 24 MB of either end.
        """
        for direction, limit in ((ASCENDING, -(-rows // 2)), (DESCENDING, rows // 2)):
            if limit:
                yield from self._end(filter, projection, [(key, direction) for key in keys], limit)

    def _end(
        self, filter: Filter, projection: Mapping[str, Any] | None, order: Sequence[tuple[str, int]], limit: int
    ) -> Iterator[Document]:
        size = 0
        with self._collection.find_raw_batches(
            filter, projection, sort=order, limit=limit, batch_size=INDEX_END_ROWS, allow_disk_use=True
        ) as cursor:
            for raw in cast("Iterator[bytes]", cursor):
                for part in split_reply(raw) if raw else ():
                    yield from decode(part, naive=False)
                size += len(raw)
                if size >= INDEX_END_BYTES:
                    return


def _hinted(hint: str | None) -> dict[str, Any]:
    # The driver refuses None as a hint of these commands.
    return {} if hint is None else {"hint": hint}


def _preference(client: MongoClient[dict[str, Any]], name: str) -> Any:
    """Return a read preference, with the URI's tags and maximum staleness."""
    own, kind = client.read_preference, PREFERENCES[name]
    # The primary has no tags and no staleness.
    if kind is Primary or isinstance(own, Primary):
        return kind()
    return kind(own.tag_sets, own.max_staleness)


def _collection(
    client: MongoClient[dict[str, Any]], database: str | None, collection: str, preference: str | None
) -> Collection[dict[str, Any]]:
    try:
        home = client.get_default_database(DATABASE) if database is None else client.get_database(database)
    except InvalidName as error:
        raise ArgumentInvalid("database", f"{error}: {database!r}") from None
    read_preference = None if preference is None else _preference(client, preference)
    try:
        return home.get_collection(collection, codec_options(), read_preference, read_concern=ReadConcern("majority"))
    except InvalidName as error:
        raise ArgumentInvalid("collection", f"{error}: {collection!r}") from None
