"""Command ``mongoq role``: rights that a producer, a worker and a viewer need, as a command that makes the role."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click
from pymongo import MongoClient

from mongoq.cli.base.connection import read_place, with_connection, with_json
from mongoq.cli.base.output import Output
from mongoq.connection import COLLECTION, open_collection
from mongoq.drivers.connection_string import make_client

ROLE_ACTIONS: Mapping[str, tuple[str, ...]] = {
    "producer": ("find", "insert", "update"),
    "worker": ("find", "insert", "update", "remove", "changeStream", "listIndexes"),
    "viewer": ("find", "listIndexes"),
}
"""Actions on the collection that each role needs at all times."""
SETUP_ACTIONS: Mapping[str, tuple[str, ...]] = {"worker": ("createIndex",)}
"""Actions on the collection for its first write, which makes the indexes.

Only workers have them: an index with an expiry deletes items, and no producer is to do that.
"""
DATABASE_ACTIONS: Mapping[str, tuple[str, ...]] = {"worker": ("listCollections",)}
"""Actions on the database, for the check of a collection into which mongoq has not written yet."""

ROLES = tuple(ROLE_ACTIONS)
ROLE_WORK: Mapping[str, str] = {"producer": "push", "worker": "read, write and wait", "viewer": "read"}
"""Verbs of what each role does, for messages."""


def create_role_command(role: str, database: str, collection: str) -> dict[str, Any]:
    """Return the ``createRole`` command of a role, for the database of the collection."""
    actions = {
        collection: (*ROLE_ACTIONS[role], *SETUP_ACTIONS.get(role, ())),
        "": DATABASE_ACTIONS.get(role, ()),  # no name stands for the database
    }
    privileges = [
        {"resource": {"db": database, "collection": name}, "actions": list(allowed)}
        for name, allowed in actions.items()
        if allowed
    ]
    return {"createRole": f"{collection}-{role}", "privileges": privileges, "roles": []}


@click.command()
@click.argument("role", type=click.Choice(ROLES))
@with_connection
@with_json
def role(role: str, *, output: Output, **given: str | None) -> None:
    """Print the command that creates a role for producers, workers or viewers, with the rights that they need.

    The text is for mongosh, as a user who may create roles; with --json it is the command document. No server is asked:
    the URI, if there is one, only names the database.

    A producer pushes and publishes. A worker makes the collection, and does all operations of queues. A viewer reads:
    with the commands that inspect, and with doctor --role viewer.
    """
    place = read_place(**given)
    # The client sends nothing, and does not ask the DNS.
    client: MongoClient[Any] = make_client(MongoClient, place.get("uri", "mongodb://localhost"), connect=False)
    with client:  # it refuses names that the server would refuse
        opened = open_collection(client, place.get("database"), place.get("collection", COLLECTION))
    database, collection = opened.database.name, opened.name
    command = create_role_command(role, database, collection)
    if output.as_json:
        output.document(command)
    else:
        click.echo(_render_script(command, database))


def _render_script(command: Mapping[str, Any], database: str) -> str:
    """Return a command as JavaScript for mongosh, and how to create a user with the role."""
    # JSON escapes all that is not ASCII: no name can end a line of a comment.
    name, place, privileges = json.dumps(command["createRole"]), json.dumps(database), ""
    for privilege in command["privileges"]:
        names = {key: json.dumps(value) for key, value in privilege["resource"].items()}
        actions = ", ".join(map(json.dumps, privilege["actions"]))
        privileges += (
            f"    {{\n      resource: {{ db: {names['db']}, collection: {names['collection']} }},\n"
            f"      actions: [\n        {actions}\n      ],\n    }},\n"
        )
    return (
        f"db.getSiblingDB({place}).createRole({{\n"
        f"  role: {name},\n  privileges: [\n{privileges}  ],\n  roles: [],\n}})\n"
        "// Then a user, whose password is typed in:\n"
        f"// db.getSiblingDB({place}).createUser({{\n"
        f"//   user: {name}, pwd: passwordPrompt(), roles: [{name}]\n// }})"
    )
