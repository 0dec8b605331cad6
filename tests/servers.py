"""Servers that tests share."""

from __future__ import annotations

from typing import Any

from pymongo import MongoClient

from mongoq.embedded import EmbeddedServer

__all__ = ["spare_the_journal"]


def spare_the_journal(server: EmbeddedServer) -> None:
    """Let no majority write to this replica set of one node wait for the journal, which takes half of its time.

    That makes a difference to nothing but what a killed server has kept. A test that kills its server starts one of
    its own, with the journal.
    """
    with MongoClient[Any](server.uri) as client:
        config = client.admin.command("replSetGetConfig")["config"]
        changed = {"version": config["version"] + 1, "writeConcernMajorityJournalDefault": False}
        client.admin.command("replSetReconfig", {**config, **changed})
