"""Checks of ``mongoq doctor`` for the server and the collection. They read and change nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from pymongo.errors import InvalidOperation, OperationFailure

from mongoq.cli.checks.role import ROLE_ACTIONS, ROLE_WORK
from mongoq.core.base.bootstrap import MAX_INDEXES, SCHEMA_ID, SCHEMA_VERSION
from mongoq.data.indexes import BEGINNING, CLAIM, CLAIM_ORDER, INDEXES
from mongoq.sync import Broker

OLDEST_SERVER = (6, 0)
MAX_CLOCK_DIFFERENCE = timedelta(seconds=1)
MAX_HISTORY_WINDOW_SECONDS = 300
"""Seconds for which the server keeps deleted entries of indexes, its default; claims walk over them."""
MAX_INDEX_SHARE = 0.5
"""Part of the cache that the indexes may take; what they push out is read from disk."""
REPLY_SAMPLES = 5
MAX_CHECK_MILLISECONDS = 5_000
"""Time that the search for a document may take: without its indexes, a collection is read as a whole."""
NAMESPACE_NOT_FOUND_CODE = 26
"""Error code of the server for a collection that does not exist."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check.

    Attributes:
        state: ``ok``, ``problem``, ``warning`` for what works with limits, or ``unknown`` if the check could not be
            made.
        detail: what was found.
        advice: what to do; empty if there is nothing to do.
    """

    state: str
    detail: str
    advice: str = ""


class Server:
    """The server of a broker, for commands that no operation of a queue sends.

    Attributes:
        place: ``database.collection``.
    """

    def __init__(self, broker: Broker) -> None:
        self.place = broker.namespace
        self._collection = broker.collection

    @cached_property
    def hello(self) -> Mapping[str, Any]:
        """Reply of ``hello``, from the first call."""
        return dict(self.command({"hello": 1}))

    @property
    def address(self) -> str:
        """Host and port of the server that takes the writes."""
        try:
            host, port = self._collection.database.client.address
        except (InvalidOperation, TypeError):  # several routers share the load
            return "a router"
        return f"{host}:{port}"

    @property
    def name(self) -> str:
        """Name of the collection."""
        return str(self._collection.name)

    @property
    def database(self) -> str:
        """Name of the database."""
        return str(self._collection.database.name)

    def command(self, command: Mapping[str, Any]) -> Any:
        """Run a command in the database of the queues."""
        return self._collection.database.command(dict(command))

    def command_admin(self, command: Mapping[str, Any]) -> Any:
        """Run a command in the database ``admin``."""
        return self._collection.database.client["admin"].command(dict(command))

    def find_one(self, filter: Mapping[str, Any], *fields: str) -> Any:
        """Find a document of the collection, within the time of a check; some of its fields."""
        projection = {"_id": 0, **dict.fromkeys(fields, 1)}
        return self._collection.find_one(filter, projection, max_time_ms=MAX_CHECK_MILLISECONDS)


# --- the server ------------------------------------------------------------------------------------


def check_reply(server: Server) -> Finding:
    """Measure the time of a round trip."""
    seconds, _ = _measure(server)
    return Finding("ok", f"{server.address} answers in {seconds * 1000:.1f} ms")


def check_version(server: Server) -> Finding:
    """Check that mongoq supports the server."""
    version = server.command({"buildInfo": 1})["version"]
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_SERVER:
        oldest = ".".join(map(str, OLDEST_SERVER))
        return Finding("problem", f"MongoDB {version}", f"mongoq needs MongoDB {oldest} or later")
    return Finding("ok", f"MongoDB {version}")


def check_replica_set(server: Server) -> Finding:
    """Check that the server has transactions and a change stream."""
    hello = server.hello
    if hello.get("msg") == "isdbgrid":
        return Finding("ok", "a router of a sharded cluster")
    if "setName" not in hello:
        return Finding(
            "warning",
            "a server without replica set: operations on single items work, but it has no transactions (forks, joins, "
            "topics, sources), no wake-ups for callers that wait, and no retried writes",
            "start it with --replSet NAME, and run rs.initiate() once; one node is enough",
        )
    members = len(hello.get("hosts", ()))
    return Finding("ok", f"{hello['setName']!r} with {members} {'member' if members == 1 else 'members'} for data")


def check_write_concern(server: Server) -> Finding:
    """Check what a majority write survives; mongoq waits for the majority whatever the URI says."""
    hello = server.hello
    if "setName" not in hello:
        return Finding("unknown", "without a replica set there is no majority")
    if hello.get("arbiters") and len(hello["hosts"]) == 2:
        return Finding(
            "problem",
            "two members with data and an arbiter: when one of the two is down, no majority takes writes",
            "make the arbiter a member with data",
        )
    config = server.command_admin({"replSetGetConfig": 1})["config"]
    if not config.get("writeConcernMajorityJournalDefault", True):
        return Finding(
            "problem",
            "majority writes do not wait for the journal, and a power cut can lose them",
            "set writeConcernMajorityJournalDefault to true with rs.reconfig()",
        )
    return Finding("ok", "majority writes are in the journal")


def check_rights(server: Server, *, role: str = "worker") -> Finding:
    """Check that the user may do what a role does: ``producer``, ``worker`` or ``viewer``."""
    auth = server.command({"connectionStatus": 1, "showPrivileges": True})["authInfo"]
    if not auth["authenticatedUsers"]:
        return Finding("ok", "no user is logged in, and the server lets everyone do everything")
    user = auth["authenticatedUsers"][0]["user"]
    granted = {
        action
        for privilege in auth["authenticatedUserPrivileges"]
        if _covers(privilege["resource"], server)
        for action in privilege["actions"]
    }
    missing = [action for action in ROLE_ACTIONS[role] if not granted & {action, "anyAction"}]
    if missing:
        actions = ", ".join(map(repr, missing))
        builtin = "read" if role == "viewer" else "readWrite"
        advice = (
            f"grant {actions} on {server.place}, or the role {builtin!r} on the database {server.database!r}; "
            f"'mongoq role {role}' prints a role with no more than it needs"
        )
        return Finding("problem", f"user {user!r} lacks {actions}", advice)
    return Finding("ok", f"user {user!r} may {ROLE_WORK[role]}")


def _covers(resource: Mapping[str, Any], server: Server) -> bool:
    """Return whether a resource of a privilege includes the collection; an empty name stands for any."""
    if resource.get("anyResource"):
        return True
    return resource.get("db") in {"", server.database} and resource.get("collection") in {"", server.name}


def check_clock(server: Server) -> Finding:
    """Compare the clock of this machine with that of the server."""
    _, ahead = _measure(server)
    difference = f"{abs(ahead.total_seconds()):.3g} s {'ahead of' if ahead > timedelta() else 'behind'} the server's"
    if abs(ahead) > MAX_CLOCK_DIFFERENCE:
        return Finding(
            "problem",
            f"the clock of this machine is {difference}; leases follow the server's, but times in logs differ",
            "synchronise both clocks by NTP",
        )
    return Finding("ok", f"this machine is {difference}")


def _measure(server: Server) -> tuple[float, timedelta]:
    """Return the seconds of the fastest of some round trips, and how far this machine's clock was ahead in it."""
    samples = []
    for _ in range(REPLY_SAMPLES):
        sent, began = datetime.now(UTC), time.monotonic()
        there = server.command({"hello": 1})["localTime"].replace(tzinfo=UTC)
        seconds = time.monotonic() - began
        samples.append((seconds, sent + timedelta(seconds=seconds / 2) - there))
    return min(samples)


def check_history_window(server: Server) -> Finding:
    """Check for how long the server keeps deleted entries of indexes."""
    name = "minSnapshotHistoryWindowInSeconds"
    seconds = server.command_admin({"getParameter": 1, name: 1})[name]
    if seconds > MAX_HISTORY_WINDOW_SECONDS:
        return Finding(
            "problem",
            f"the server keeps deleted entries of indexes for {seconds:,} s, and full claims walk over them",
            f"set {name} to {MAX_HISTORY_WINDOW_SECONDS} or less",
        )
    return Finding("ok", f"{seconds:,} s")


# --- the collection --------------------------------------------------------------------------------


def check_schema(server: Server) -> Finding:
    """Check the version of the stored documents."""
    schema = server.find_one({"_id": SCHEMA_ID}, "version")
    if schema is None:
        return Finding("ok", f"{server.place} is new; its first write makes it one of version {SCHEMA_VERSION}")
    if not isinstance(schema.get("version"), int):
        return Finding(
            "problem", f"{SCHEMA_ID!r} in {server.place} has no version", "set it to that of the mongoq in use"
        )
    if schema["version"] > SCHEMA_VERSION:
        return Finding(
            "problem",
            f"{server.place} was written by a later mongoq: version {schema['version']}, and this one is "
            f"{SCHEMA_VERSION}",
            "upgrade mongoq here too",
        )
    return Finding("ok", f"{server.place} has version {schema['version']}")


def check_indexes(server: Server) -> Finding:
    """Check that the indexes are there, as mongoq makes them."""
    try:
        listed = server.command({"listIndexes": server.name, "cursor": {"batchSize": MAX_INDEXES}})
    except OperationFailure as error:
        if error.code != NAMESPACE_NOT_FOUND_CODE:
            raise
        return Finding("ok", "the first write makes them")
    there = {index["name"]: index for index in listed["cursor"]["firstBatch"]}
    if hidden := [index.name for index in INDEXES if there.get(index.name, {}).get("hidden")]:
        return Finding(
            "problem",
            f"{', '.join(hidden)} of {server.place} are hidden from the server's plans",
            f"show each: db.runCommand({{collMod: '{server.name}', index: {{name: '{hidden[0]}', hidden: false}}}})",
        )
    missing = [index.name for index in INDEXES if not _is_made(there.get(index.name), index.document())]
    keys = [list(index.pattern.items()) for index in INDEXES if index.name in missing]
    in_the_way = [name for name, index in there.items() if name in missing or list(index["key"].items()) in keys]
    if missing and len(there) + len(missing) > MAX_INDEXES:
        return Finding(
            "problem",
            f"{server.place} lacks {', '.join(missing)}, and has {len(there)} indexes; {MAX_INDEXES} is the most",
            "drop indexes of other programs, and run broker.ensure_indexes()",
        )
    if missing:
        drop = (
            f"drop {', '.join(in_the_way)}, which the server would have to make otherwise, and " if in_the_way else ""
        )
        return Finding(
            "problem",
            f"{server.place} lacks {', '.join(missing)}, or has them in another form",
            f"{drop}run broker.ensure_indexes() as a user with the right to create indexes",
        )
    others = len(there) - len(INDEXES) - 1
    return Finding("ok", f"all {len(INDEXES)}" + (f", and {others} of other programs" if others > 0 else ""))


def _is_made(index: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    if index is None:
        return False
    # ``SON`` and ``dict`` are equal in any order, and the order of an index matters.
    return list(index["key"].items()) == list(wanted["key"].items()) and all(
        index.get(option) == value for option, value in wanted.items() if option != "key"
    )


def check_index_use(server: Server) -> Finding:
    """Check that a claim is answered by its index, without a sort."""
    first = server.find_one({"q": {"$gte": ""}, "when": {"$gte": BEGINNING}}, "q")
    if first is None:
        return Finding("ok", "no queue holds an item")
    find = {
        "find": server.name,
        "filter": {"q": first["q"], "when": {"$lte": datetime.now(UTC)}},
        "sort": dict(CLAIM_ORDER),
        "limit": 1,
    }
    stages = list(
        _stages(server.command({"explain": find, "verbosity": "queryPlanner"})["queryPlanner"]["winningPlan"])
    )
    indexes = {stage["indexName"] for stage in stages if "indexName" in stage}
    if indexes == {CLAIM.name} and not any(stage["stage"] == "SORT" for stage in stages):
        return Finding("ok", f"claims use {CLAIM.name}")
    names = ", ".join(sorted(indexes)) or "no index"
    return Finding(
        "problem",
        f"claims of queue {first['q']!r} use {names} instead of {CLAIM.name}, or sort",
        "remove index filters (planCacheClearFilters) and query settings of this collection, and compare the indexes",
    )


def _stages(plan: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(plan, Mapping):
        if isinstance(plan.get("stage"), str):
            yield plan
        for part in plan.values():
            yield from _stages(part)
    elif isinstance(plan, list):
        for part in plan:
            yield from _stages(part)


def check_cache(server: Server) -> Finding:
    """Compare the size of the indexes with the cache: claims and settlements need them in memory."""
    # In this order: the role that a refusal of the first command names includes the second one.
    cache = server.command({"serverStatus": 1})["wiredTiger"]["cache"]["maximum bytes configured"]
    stats = server.command({"collStats": server.name})
    data, indexes = stats.get("size", 0), stats.get("totalIndexSize", 0)
    items, own, memory = (f"{size / 1024**3:,.2f} GiB" for size in (data, indexes, cache))
    sizes = f"{items} of items, {own} of indexes, {memory} of cache"
    if indexes > cache * MAX_INDEX_SHARE:
        return Finding(
            "problem", sizes, "keep history for a shorter time (configure history=), or give the server memory"
        )
    return Finding("ok", sizes)
