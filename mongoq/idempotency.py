"""Once: a document that is written by the first attempt of a delivery, and found there by the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymongo import WriteConcern
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import DuplicateKeyError

from mongoq.data.settings import KEEP
from mongoq.drivers.sessions import find_session
from mongoq.errors import ArgumentInvalid

__all__ = ["once", "once_async"]


def once(collection: Any, hash: str, document: Mapping[str, Any], *, session: Any = KEEP) -> bool:
    """Insert a document under the hash of a delivery, unless an earlier attempt has done so (``insert``).

    ```python
    @pipeline.sink("out")
    def load(flight, job):
        mongoq.once(warehouse, job.delivery_hash, flight)
    ```

    The hash becomes the ``_id``, so a handler that was killed between its write and its settlement writes nothing twice
    when it runs again. The write is acknowledged by a majority. A crash leaves the document there, or not.

    Args:
        collection: a collection of PyMongo's ``MongoClient``, of any database.
        hash: ``job.delivery_hash``, or another text that is the same in every attempt.
        document: what to write, without an ``_id``.
        session: a session of that client; by default that of the block of ``broker.transaction()`` that the call is in,
            if any, and ``None`` for a write outside of it. Within a transaction it is first looked whether the document
            is there (``find``), since an error would end the transaction.

    Returns:
        Whether it was written now.

    Raises:
        ArgumentInvalid: ``hash`` is no text, or ``document`` no document, or it has an ``_id`` of its own; or the
            collection is one for asyncio, which goes with ``once_async``.

    Errors of the driver pass through. After a lost reply, run it again.
    """
    record, ready = _check_arguments(collection, hash, document, asynchronous=False)
    session = _choose_session(collection, session)
    if _in_transaction(session) and ready.find_one({"_id": hash}, {"_id": 1}, session=session) is not None:
        return False
    try:
        ready.insert_one(record, session=session)
    except DuplicateKeyError as error:
        return _was_there(error, session)
    return True


async def once_async(collection: Any, hash: str, document: Mapping[str, Any], *, session: Any = KEEP) -> bool:
    """Do as ``once``, for a collection of PyMongo's ``AsyncMongoClient`` or of Motor."""
    record, ready = _check_arguments(collection, hash, document, asynchronous=True)
    session = _choose_session(collection, session)
    if _in_transaction(session) and await ready.find_one({"_id": hash}, {"_id": 1}, session=session) is not None:
        return False
    try:
        await ready.insert_one(record, session=session)
    except DuplicateKeyError as error:
        return _was_there(error, session)
    return True


def _check_arguments(collection: Any, hash: Any, document: Any, *, asynchronous: bool) -> tuple[dict[str, Any], Any]:
    """Return the document to write, and a handle of the collection whose writes wait for a majority."""
    if not isinstance(hash, str) or not hash:
        raise ArgumentInvalid("hash", f"a text such as job.delivery_hash, not {hash!r:.60}")
    if not isinstance(document, Mapping):
        raise ArgumentInvalid("document", f"a document, not {type(document).__name__}")
    if document.get("_id", hash) != hash:
        raise ArgumentInvalid("document", "has an _id of its own, and the hash is to be its _id; give it another name")
    if not hasattr(collection, "with_options"):
        raise ArgumentInvalid("collection", f"a collection of PyMongo, not {type(collection).__name__}")
    other = "once" if asynchronous else "once_async"
    if _is_asynchronous(collection) is not asynchronous:  # noticed later, it was written already, or never will be
        raise ArgumentInvalid("collection", f"a {type(collection).__name__} goes with {other}")
    return {"_id": hash, **document}, collection.with_options(write_concern=WriteConcern("majority"))


def _is_asynchronous(collection: Any) -> bool:
    return isinstance(collection, AsyncCollection) or type(collection).__module__.startswith("motor.")


def _choose_session(collection: Any, session: Any) -> Any:
    return find_session(collection.database.client) if session is KEEP else session


def _in_transaction(session: Any) -> bool:
    return session is not None and bool(session.in_transaction)


def _was_there(error: DuplicateKeyError, session: Any) -> bool:
    """Say that it was not written now; a unique index of another field is the caller's business."""
    key = (error.details or {}).get("keyPattern")
    if _in_transaction(session) or (key is not None and set(key) != {"_id"}):
        raise error
    return False
