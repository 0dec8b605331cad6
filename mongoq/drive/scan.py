"""Large reads for tables: what is there, where to split it, and documents by whole wire batches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn, Self, cast
from urllib.parse import unquote_plus

import bson
from bson import ObjectId
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import (
    ConnectionFailure,
    InvalidName,
    InvalidURI,
    OperationFailure,
    PyMongoError,
)
from pymongo.read_concern import ReadConcern

from mongoq.errors import ArgumentInvalid, AuthenticationFailed, ServerUnavailable
from mongoq.model.codec import codec_options

__all__ = ["Scan"]

DATABASE = "mongoq"
SELECTION_SECONDS = 5.0
SELECTION_OPTION = "serverselectiontimeoutms"
UNAUTHORIZED = 13
AUTHENTICATION_FAILED = (18, 8000)  # the latter on Atlas
SAMPLES = 500
"""Ids sampled for each range: their sizes then differ by a few percent."""
LARGE = 500_000
"""Documents from which a random cursor is fair: it is partial to pages, and one page may hold 30,000."""
RANDOM_CURSOR_SHARE = 20
"""Up to a twentieth of a collection ``$sample`` walks a random cursor; beyond, it sorts the whole."""

Filter = Mapping[str, Any]


class Scan:
    """One client on one collection, for reading only; closed by its ``with`` block.

    Reads with majority read concern, from the primary unless the URI names another read preference. Nothing
    is sent before the first question.
    """

    def __init__(self, uri: str, database: str | None, collection: str, *, patience: float = SELECTION_SECONDS) -> None:
        self._client = _client(uri, patience)
        try:
            self._collection = _collection(self._client, database, collection)
        except ArgumentInvalid:
            self._client.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    @contextmanager
    def in_plain_words(self) -> Iterator[None]:
        """Turn no server and no access into a sentence that says what to do, without credentials."""
        try:
            yield
        except ConnectionFailure as error:
            addresses = self._client.topology_description.server_descriptions()
            servers = ", ".join(f"{host}:{port}" for host, port in addresses)
            raise ServerUnavailable(
                f"no usable MongoDB server answered at {servers}: start it, or correct the option uri"
            ) from error
        except OperationFailure as error:
            self._refused(error)

    def _refused(self, error: OperationFailure) -> NoReturn:
        if error.code in AUTHENTICATION_FAILED:
            raise AuthenticationFailed(
                "the server refused the credentials of the option uri: correct user, password or authSource"
            ) from error
        if error.code == UNAUTHORIZED:
            raise AuthenticationFailed(
                f"the user of the option uri may not read {self._collection.full_name}: grant it the role 'read'"
            ) from error
        raise error

    def now(self) -> datetime:
        """Return the server's time."""
        reply = self._collection.database.command("hello", codec_options=codec_options())
        moment: datetime = reply["localTime"]
        return moment

    def size(self) -> int:
        """Return about how many documents the collection holds, from its metadata."""
        return self._collection.estimated_document_count()

    def index(self, keys: Sequence[str]) -> str | None:
        """Return the name of the ascending index on exactly these keys, if there is one."""
        wanted = [(key, 1) for key in keys]
        for name, index in self._collection.index_information().items():
            if list(index["key"]) == wanted:
                return name
        return None

    def count(self, filter: Filter, hint: str | None) -> int:
        """Count what matches: ``aggregate`` of ``$match`` and ``$group``."""
        options: dict[str, Any] = {} if hint is None else {"hint": hint}
        return self._collection.count_documents(filter, **options)

    def date(self, filter: Filter, field: str, *, place: int, hint: str | None) -> datetime | None:
        """Return the date in a field at a place in its order, the first at 0; ``None`` beyond the last.

        ``find`` with ``skip``, which walks over the keys of the index.
        """
        keys = {field: 1, "_id": 0}
        cursor = self._collection.find(filter, keys, hint=hint, sort=[(field, 1), ("_id", 1)], skip=place, limit=1)
        for document in cursor:
            date: datetime = document[field]
            return date
        return None

    def boundaries(self, filter: Filter, hint: str | None, *, count: int, parts: int) -> list[ObjectId]:
        """Return ids that split what matches into about equal parts, ascending; at most ``parts - 1``.

        Only ObjectIds are returned, since ranges compare ids of one type only. In a large collection a random
        cursor finds them, within some 15 %, at a cost that does not grow with the queue. In a smaller one,
        and for a queue that is a small part of a large one, ``$bucketAuto`` finds them exactly.
        """
        size = self.size()
        sample = -(-SAMPLES * parts * size // max(count, 1))
        if size >= LARGE and sample * RANDOM_CURSOR_SHARE < size:
            ids = self._sampled(filter, sample)
            places = [len(ids) * part // parts for part in range(1, parts)]
            return sorted({ids[place] for place in places}) if ids else []
        return self._exact(filter, hint, parts)

    def _sampled(self, filter: Filter, size: int) -> list[ObjectId]:
        pipeline: list[dict[str, Any]] = [
            {"$sample": {"size": size}},
            {"$match": _object_ids(filter)},
            {"$project": {"_id": 1}},
        ]
        return sorted(document["_id"] for document in self._collection.aggregate(pipeline))

    def _exact(self, filter: Filter, hint: str | None, parts: int) -> list[ObjectId]:
        pipeline: list[dict[str, Any]] = [
            {"$match": _object_ids(filter)},
            {"$project": {"_id": 1}},
            {"$bucketAuto": {"groupBy": "$_id", "buckets": parts}},
        ]
        options: dict[str, Any] = {} if hint is None else {"hint": hint}
        buckets = self._collection.aggregate(pipeline, allowDiskUse=True, **options)
        return [bucket["_id"]["min"] for bucket in buckets][1:]

    def batches(
        self, filter: Filter, projection: Mapping[str, Any] | None, *, hint: str | None, rows: int
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield documents in lists of at most ``rows`` and about 16 MB, as the server sends them.

        A raw batch is decoded at once, so the reply's own limit bounds the memory.
        """
        codec = codec_options()
        with self._collection.find_raw_batches(filter, projection, batch_size=rows, hint=hint) as cursor:
            for raw in cast("Iterator[bytes]", cursor):  # typed as documents, which it does not decode
                documents = bson.decode_all(raw, codec)
                if documents:
                    yield documents


def _object_ids(filter: Filter) -> Filter:
    return {"$and": [filter, {"_id": {"$type": "objectId"}}]}


def _client(uri: str, patience: float) -> MongoClient[dict[str, Any]]:
    options: dict[str, Any] = {"tz_aware": True}
    if SELECTION_OPTION not in uri.lower():
        options[SELECTION_OPTION] = patience * 1000
    try:
        return MongoClient(uri, **options)
    except (PyMongoError, ValueError, TypeError) as error:
        raise ArgumentInvalid("uri", _uri_problem(uri, error)) from None


def _uri_problem(uri: str, error: Exception) -> str:
    """Say what is wrong with a URI, and quote the driver only where it does not quote a credential."""
    if isinstance(error, InvalidURI) or _secrets(uri) & set(_words(str(error))):
        return (
            "not a usable MongoDB URI; one reads mongodb://user:password@host:port/, with special characters in user "
            "and password percent-encoded"
        )
    return f"the driver refuses it: {error}"


def _secrets(uri: str) -> set[str]:
    rest = uri.partition("://")[2]
    given = rest.rpartition("@")[0] + " " + rest.partition("?")[2]
    return set(_words(given)) | set(_words(unquote_plus(given)))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _collection(
    client: MongoClient[dict[str, Any]], database: str | None, collection: str
) -> Collection[dict[str, Any]]:
    try:
        home = client.get_default_database(DATABASE) if database is None else client.get_database(database)
    except InvalidName as error:
        raise ArgumentInvalid("database", f"{error}: {database!r}") from None
    try:
        return home.get_collection(collection, codec_options(), read_concern=ReadConcern("majority"))
    except InvalidName as error:
        raise ArgumentInvalid("collection", f"{error}: {collection!r}") from None
