"""Servers that tests share."""

from __future__ import annotations

from typing import Any

from pymongo import MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer

__all__ = ["drop", "empty", "make_indexes", "spare_the_journal"]


def spare_the_journal(server: EmbeddedServer) -> None:
    """Let no majority write to this replica set of one node wait for the journal, which takes half of its time.

    That makes a difference to nothing but what a killed server has kept. A test that kills its server starts one of
    its own, with the journal.
    """
    with MongoClient[Any](server.uri) as client:
        config = client.admin.command("replSetGetConfig")["config"]
        changed = {"version": config["version"] + 1, "writeConcernMajorityJournalDefault": False}
        client.admin.command("replSetReconfig", {**config, **changed})
        # Without a write after it, the first drop of a database would wait for 20 s (6.0).
        client.admin.command("appendOplogNote", 1, data={"changed": "journal"})


def make_indexes(client: MongoClient[Any], database: str, collection: str = "mongoq") -> set[str]:
    """Make the collection and the indexes of mongoq, and no document; return the indexes' names."""
    raw = client[database][collection]
    with mongoq.Broker(raw) as broker:
        broker.ensure_indexes()
    raw.delete_many({})
    return set(raw.index_information())


def drop(client: MongoClient[Any], name: str) -> None:
    """Drop a database. With collections in it the server would wait for its next journal flush, 0.1 s."""
    for collection in client[name].list_collection_names():
        client[name].drop_collection(collection)
    client.drop_database(name)


def empty(client: MongoClient[Any], name: str, indexes: set[str]) -> None:
    """Empty a database: of its collections remains that of mongoq, made again if a test has changed its indexes."""
    kept = False
    for collection in client[name].list_collections():
        own = client[name][collection["name"]]
        if collection["name"] == "mongoq" and not collection["options"] and set(own.index_information()) == indexes:
            own.delete_many({})
            kept = True
        else:
            own.drop()
    if not kept:
        make_indexes(client, name)
