"""Commands ``mongoq doctor``: one line for each check, which is ok or says what to do; and ``health``, for probes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import click
from pymongo.errors import InvalidOperation, OperationFailure

from mongoq import BoundedCount, QueueInsight, WorkerRecord
from mongoq.cli.base.arguments import DURATION
from mongoq.cli.base.changes import amount
from mongoq.cli.base.connection import TIMEOUT_SECONDS, connect, with_connection, with_json
from mongoq.cli.base.output import OPERATION_FAILED, Output
from mongoq.cli.checks.role import ROLE_ACTIONS, ROLE_WORK, ROLES
from mongoq.data.encoding.extended_json import duration_text
from mongoq.data.indexes import BEGINNING, CLAIM, CLAIM_ORDER, INDEXES, MAX_INDEXES, SCHEMA_ID, SCHEMA_VERSION
from mongoq.data.process import Health
from mongoq.data.schedule.definition import ScheduleRecord
from mongoq.drivers.errors import UNAUTHORIZED_CODE, describe_missing_right
from mongoq.errors import CollectionUnsuitable, MongoqError
from mongoq.sync import Broker

MAX_AGE = "1h"
"""Time that the first due item of a queue may wait, by default."""
SECOND = "%Y-%m-%d %H:%M:%S"
SHOWN = 5
"""Queues or workers that a line names, at most."""
UNATTENDED = timedelta(minutes=1)
"""Time after which a due item of a queue without consumer counts as forgotten."""
OLDEST_SERVER = (6, 0)
MAX_CLOCK_DIFFERENCE = timedelta(seconds=1)
MAX_HISTORY_WINDOW_SECONDS = 300
"""Seconds for which the server keeps deleted entries of indexes, its default; claims walk over them."""
MAX_INDEX_SHARE = 0.5
"""Part of the cache that the indexes may take; what they push out is read from disk."""
REPLY_SAMPLES = 5
MAX_CHECK_MILLISECONDS = 5_000
"""Time that the search for an item may take."""
NAMESPACE_NOT_FOUND_CODE = 26
"""Error code of the server for a collection that does not exist."""


@click.command()
@with_connection
@with_json
@click.option(
    "--max-age", type=DURATION, default=MAX_AGE, help="Time that the first due item of a queue may wait, such as 15m."
)
@click.option("--role", type=click.Choice(ROLES), default="worker", help="Role whose rights the user is to have.")
@click.option("--spark", is_flag=True, help="Check Spark and Java too.")
def doctor(*, max_age: timedelta, role: str, spark: bool, output: Output, **place: Any) -> None:
    """Check server, collection and queues, and say what to do.

    Each line begins with ok, with problem, with warning for what works with limits, or with unknown where the user may
    not read what the check needs. Exits with 1 if there is a problem. It changes nothing.
    """
    found = 0

    def tell(check: str, finding: Finding) -> None:
        nonlocal found
        found += finding.state == "problem"
        advice = f": {finding.advice}" if finding.advice else ""
        text = f"{finding.state:<8} {check:<17} {finding.detail}{advice}"
        output.result({"check": check, **asdict(finding)}, text)

    try:
        with connect(**place) as broker:
            for check, finding in _examine(broker, max_age, role):
                tell(check, finding)
    except MongoqError as error:
        tell("collection" if isinstance(error, CollectionUnsuitable) else "reachable", Finding("problem", str(error)))
    if spark:
        from mongoq import spark as of_spark
        from mongoq.spark.versions import pyspark_version

        try:
            of_spark.check()
            found_spark = Finding("ok", f"PySpark {pyspark_version() or ''}, Java {of_spark.java_version()}")
        except of_spark.SparkUnavailable as error:
            found_spark = Finding("problem", str(error))
        tell("Spark", found_spark)
    if found:
        click.get_current_context().exit(OPERATION_FAILED)


def _examine(broker: Broker, max_age: timedelta, role: str) -> Iterator[tuple[str, Finding]]:
    """Run all checks of a server and its queues, each by itself: one that cannot be made does not end the others."""
    server, inspection = ServerChecks(broker, role), broker.inspect()
    workers = cache(inspection.workers)  # two checks ask, and an error is each one's own
    checks: dict[str, Callable[[], Finding]] = {
        "reachable": server.check_reply,
        "server version": server.check_version,
        "replica set": server.check_replica_set,
        "write concern": server.check_write_concern,
        "rights": server.check_rights,
        "schema version": server.check_schema,
        "indexes": server.check_indexes,
        "use of the index": server.check_index_use,
        "clock": server.check_clock,
        "history window": server.check_history_window,
        "cache": server.check_cache,
        "stored settings": lambda: _judge(inspection.unusable(), "{}", fine="all can be used"),
        "workers": lambda: check_workers(workers()),
        "long runs": lambda: check_long_runs(workers()),
        "schedules": lambda: check_schedules(inspection.schedules()),
        "sequences": lambda: check_sequences(inspection.stuck_sequences()),
        "held sequences": lambda: check_held(inspection.held_sequences()),
    }
    for name, check in checks.items():
        try:
            finding = check()
        except OperationFailure as error:
            finding = _describe_refusal(error)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # A program that stands in for MongoDB answers in a form of its own.
            finding = Finding("unknown", f"the reply of the server cannot be read: {type(error).__name__}")
        yield name, finding
    try:
        queues = inspection.queues()
    except OperationFailure as error:
        yield "queues", _describe_refusal(error)
        return
    yield "consumers", check_consumers(queues)
    yield "paused", check_paused(queues)
    yield "oldest item", check_oldest(queues, max_age)


def _describe_refusal(error: OperationFailure) -> Finding:
    """Return that a check could not be made; that says nothing about what it checks."""
    if error.code == UNAUTHORIZED_CODE:
        return Finding("unknown", f"the server {describe_missing_right(error)}")
    return Finding("unknown", f"the server refused the command: code {error.code}")


@click.command()
@with_connection
@with_json
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT_SECONDS,
    help="Seconds that the check may take.",
)
def health(*, timeout: float, output: Output, **place: Any) -> None:
    """Check that a server takes writes and the collection is suitable.

    Exits with 0 if so, and with 1 and the reasons if not.
    """
    try:
        with connect(timeout=timeout, **place) as broker:
            result = broker.health(within=timeout)
    except MongoqError as error:
        result = Health.of([str(error)])
    if output.as_json:
        output.document(result.to_document())
    else:
        for line in ("healthy",) if result.healthy else result.reasons:
            output.line(line)
    if not result.healthy:
        click.get_current_context().exit(OPERATION_FAILED)


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


# --- server and collection -------------------------------------------------------------------------


class ServerChecks:
    """Checks of the server of a broker and its collection; one that cannot be made raises the error of the driver."""

    def __init__(self, broker: Broker, role: str) -> None:
        self._place = broker.namespace
        self._role = role
        self._collection = broker.collection
        self._database = broker.collection.database
        self._command = self._database.command
        self._command_admin = self._database.client["admin"].command

    def check_reply(self) -> Finding:
        """Measure the time of a round trip."""
        try:
            host, port = self._database.client.address
            address = f"{host}:{port}"
        except (InvalidOperation, TypeError):  # several routers share the load
            address = "a router"
        return Finding("ok", f"{address} answers in {self._measure()[0] * 1000:.1f} ms")

    def check_version(self) -> Finding:
        """Check that mongoq supports the server."""
        version = self._command({"buildInfo": 1})["version"]
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_SERVER:
            oldest = ".".join(map(str, OLDEST_SERVER))
            return Finding("problem", f"MongoDB {version}", f"mongoq needs MongoDB {oldest} or later")
        return Finding("ok", f"MongoDB {version}")

    def check_replica_set(self) -> Finding:
        """Check that the server has transactions and a change stream."""
        hello = self._command({"hello": 1})
        if hello.get("msg") == "isdbgrid":
            return Finding("ok", "a router of a sharded cluster")
        if "setName" not in hello:
            detail = (
                "a server without replica set: operations on single items work, but it has no transactions (forks, "
                "joins, topics, sources), no wake-ups for callers that wait, and no retried writes"
            )
            advice = "start it with --replSet NAME, and run rs.initiate() once; one node is enough"
            return Finding("warning", detail, advice)
        members = len(hello.get("hosts", ()))
        return Finding("ok", f"{hello['setName']!r} with {members} {'member' if members == 1 else 'members'} for data")

    def check_write_concern(self) -> Finding:
        """Check what a majority write survives; mongoq waits for the majority whatever the URI says."""
        hello = self._command({"hello": 1})
        if "setName" not in hello:
            return Finding("unknown", "without a replica set there is no majority")
        if hello.get("arbiters") and len(hello["hosts"]) == 2:
            detail = "two members with data and an arbiter: when one of the two is down, no majority takes writes"
            return Finding("problem", detail, "make the arbiter a member with data")
        config = self._command_admin({"replSetGetConfig": 1})["config"]
        if not config.get("writeConcernMajorityJournalDefault", True):
            detail = "majority writes do not wait for the journal, and a power cut can lose them"
            return Finding("problem", detail, "set writeConcernMajorityJournalDefault to true with rs.reconfig()")
        return Finding("ok", "majority writes are in the journal")

    def check_rights(self) -> Finding:
        """Check that the user may do what the role does."""
        auth = self._command({"connectionStatus": 1, "showPrivileges": True})["authInfo"]
        if not auth["authenticatedUsers"]:
            return Finding("ok", "no user is logged in, and the server lets everyone do everything")
        user, role = auth["authenticatedUsers"][0]["user"], self._role
        database, name = self._database.name, self._collection.name
        granted: set[str] = set()
        for privilege in auth["authenticatedUserPrivileges"]:
            resource = privilege["resource"]  # an empty name stands for any
            is_named = resource.get("db") in {"", database} and resource.get("collection") in {"", name}
            if is_named or resource.get("anyResource"):
                granted |= set(privilege["actions"])
        missing = [action for action in ROLE_ACTIONS[role] if not granted & {action, "anyAction"}]
        if missing:
            actions = ", ".join(map(repr, missing))
            builtin = "read" if role == "viewer" else "readWrite"
            advice = (
                f"grant {actions} on {self._place}, or the role {builtin!r} on the database {database!r}; "
                f"'mongoq role {role}' prints a role with no more than it needs"
            )
            return Finding("problem", f"user {user!r} lacks {actions}", advice)
        return Finding("ok", f"user {user!r} may {ROLE_WORK[role]}")

    def check_clock(self) -> Finding:
        """Compare the clock of this machine with that of the server."""
        ahead = self._measure()[1]
        side = "ahead of" if ahead > timedelta() else "behind"
        difference = f"{abs(ahead.total_seconds()):.3g} s {side} the server's"
        if abs(ahead) > MAX_CLOCK_DIFFERENCE:
            detail = f"the clock of this machine is {difference}; leases follow the server's, but times in logs differ"
            return Finding("problem", detail, "synchronise both clocks by NTP")
        return Finding("ok", f"this machine is {difference}")

    def _measure(self) -> tuple[float, timedelta]:
        """Return the seconds of the fastest of some round trips, and how far this machine's clock was ahead in it."""
        samples = []
        for _ in range(REPLY_SAMPLES):
            sent, began = datetime.now(UTC), time.monotonic()
            there = self._command({"hello": 1})["localTime"].replace(tzinfo=UTC)
            seconds = time.monotonic() - began
            samples.append((seconds, sent + timedelta(seconds=seconds / 2) - there))
        return min(samples)

    def check_history_window(self) -> Finding:
        """Check for how long the server keeps deleted entries of indexes."""
        name = "minSnapshotHistoryWindowInSeconds"
        seconds = self._command_admin({"getParameter": 1, name: 1})[name]
        if seconds > MAX_HISTORY_WINDOW_SECONDS:
            detail = f"the server keeps deleted entries of indexes for {seconds:,} s, and full claims walk over them"
            return Finding("problem", detail, f"set {name} to {MAX_HISTORY_WINDOW_SECONDS} or less")
        return Finding("ok", f"{seconds:,} s")

    def check_schema(self) -> Finding:
        """Check the version of the stored documents."""
        schema = self._collection.find_one({"_id": SCHEMA_ID})
        if schema is None:
            return Finding("ok", f"{self._place} is new; its first write makes it one of version {SCHEMA_VERSION}")
        version = schema.get("version")
        if not isinstance(version, int):
            detail = f"{SCHEMA_ID!r} in {self._place} has no version"
            return Finding("problem", detail, "set it to that of the mongoq in use")
        if version > SCHEMA_VERSION:
            detail = f"{self._place} was written by a later mongoq: version {version}, and this one is {SCHEMA_VERSION}"
            return Finding("problem", detail, "upgrade mongoq here too")
        return Finding("ok", f"{self._place} has version {version}")

    def check_indexes(self) -> Finding:
        """Check that the indexes are there, as mongoq makes them."""
        name, place = self._collection.name, self._place
        try:
            listed = self._command({"listIndexes": name, "cursor": {"batchSize": MAX_INDEXES}})
        except OperationFailure as error:
            if error.code != NAMESPACE_NOT_FOUND_CODE:
                raise
            return Finding("ok", "the first write makes them")
        there = {index["name"]: index for index in listed["cursor"]["firstBatch"]}
        if hidden := [index.name for index in INDEXES if there.get(index.name, {}).get("hidden")]:
            detail = f"{', '.join(hidden)} of {place} are hidden from the server's plans"
            change = f"{{collMod: '{name}', index: {{name: '{hidden[0]}', hidden: false}}}}"
            return Finding("problem", detail, f"show each: db.runCommand({change})")
        missing, keys = [], []
        for index in INDEXES:
            made, wanted = there.get(index.name, {}), index.document()
            # ``SON`` and ``dict`` are equal in any order, and the order of an index matters.
            key = list(wanted["key"].items())
            if list(made.get("key", {}).items()) != key or any(made.get(each) != wanted[each] for each in wanted):
                missing.append(index.name)
                keys.append(key)
        lacks = f"{place} lacks {', '.join(missing)}"
        if missing and len(there) + len(missing) > MAX_INDEXES:
            detail = f"{lacks}, and has {len(there)} indexes; {MAX_INDEXES} is the most"
            return Finding("problem", detail, "drop indexes of other programs, and run broker.ensure_indexes()")
        if missing:
            others = [each for each, index in there.items() if each in missing or list(index["key"].items()) in keys]
            drop = f"drop {', '.join(others)}, which the server would have to make otherwise, and " if others else ""
            advice = f"{drop}run broker.ensure_indexes() as a user with the right to create indexes"
            return Finding("problem", f"{lacks}, or has them in another form", advice)
        more = len(there) - len(INDEXES) - 1
        return Finding("ok", f"all {len(INDEXES)}" + (f", and {more} of other programs" if more > 0 else ""))

    def check_index_use(self) -> Finding:
        """Check that a claim is answered by its index, without a sort."""
        # Without its indexes, a collection is read as a whole.
        filter = {"q": {"$gte": ""}, "when": {"$gte": BEGINNING}}
        first = self._collection.find_one(filter, {"q": 1}, max_time_ms=MAX_CHECK_MILLISECONDS)
        if first is None:
            return Finding("ok", "no queue holds an item")
        claim = {"q": first["q"], "when": {"$lte": datetime.now(UTC)}}
        find = {"find": self._collection.name, "filter": claim, "sort": dict(CLAIM_ORDER), "limit": 1}
        plan = self._command({"explain": find, "verbosity": "queryPlanner"})["queryPlanner"]["winningPlan"]
        stages = list(_stages(plan))
        indexes = {stage["indexName"] for stage in stages if "indexName" in stage}
        if indexes == {CLAIM.name} and not any(stage["stage"] == "SORT" for stage in stages):
            return Finding("ok", f"claims use {CLAIM.name}")
        names = ", ".join(sorted(indexes)) or "no index"
        detail = f"claims of queue {first['q']!r} use {names} instead of {CLAIM.name}, or sort"
        advice = "remove index filters (planCacheClearFilters) and query settings of this collection"
        return Finding("problem", detail, f"{advice}, and compare the indexes")

    def check_cache(self) -> Finding:
        """Compare the size of the indexes with the cache: claims and settlements need them in memory."""
        # In this order: the role that a refusal of the first command names includes the second one.
        cache = self._command({"serverStatus": 1})["wiredTiger"]["cache"]["maximum bytes configured"]
        stats = self._command({"collStats": self._collection.name})
        data, indexes = stats.get("size", 0), stats.get("totalIndexSize", 0)
        items, own, memory = (f"{size / 1024**3:,.2f} GiB" for size in (data, indexes, cache))
        sizes = f"{items} of items, {own} of indexes, {memory} of cache"
        if indexes > cache * MAX_INDEX_SHARE:
            advice = "keep history for a shorter time (configure history=), or give the server memory"
            return Finding("problem", sizes, advice)
        return Finding("ok", sizes)


def _stages(plan: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(plan, Mapping) and isinstance(plan.get("stage"), str):
        yield plan
    for part in plan.values() if isinstance(plan, Mapping) else plan if isinstance(plan, list) else ():
        yield from _stages(part)


# --- queues and workers ----------------------------------------------------------------------------


def check_workers(workers: Sequence[WorkerRecord]) -> Finding:
    """Check that the workers that have not ended send heartbeats."""
    gone = [f"{worker.name} since {worker.seen:{SECOND}} UTC" for worker in workers if not worker.alive]
    live = len(workers) - len(gone)
    advice = (
        "see why they died; their items come back when their leases end, and a live worker removes their records after "
        "ten minutes"
    )
    return _judge(gone, "gone without an end are {}", advice, fine=f"{live} {'works' if live == 1 else 'work'}")


def check_long_runs(workers: Sequence[WorkerRecord]) -> Finding:
    """Check that no handler hangs in a worker that lives: it extends the leases of its items for ever."""
    runs = [
        f"{worker.name} has run an item of {queue} for {duration_text(length)}"
        for worker in workers
        if worker.alive
        for queue, length in worker.overdue.items()
    ]
    fine = "no handler has run for longer than its max_time, by default five minutes"
    advice = "the log of the worker shows where it is; max_time=, with on_timeout=, gives such a run up"
    return _judge(runs, "{}", advice, fine=fine, state="warning")


def check_consumers(queues: Sequence[QueueInsight]) -> Finding:
    """Check that queues with due items have a worker; programs that call ``reserve`` are not seen."""
    dead = {queue.dead_queue for queue in queues}
    forgotten = [
        f"{queue.name} ({_age(queue)})"
        for queue in queues
        if not (queue.consumers or queue.paused or queue.name in dead) and (queue.oldest_age or UNATTENDED) > UNATTENDED
    ]
    fine = "queues with due items have workers, or are not a minute behind"
    advice = "start a worker for them, such as mongoq worker app:worker"
    return _judge(forgotten, "no worker takes the due items of {}", advice, fine=fine)


def check_paused(queues: Sequence[QueueInsight]) -> Finding:
    """Check that no items wait in paused queues: a pause is deliberate, but it may have been forgotten."""
    waiting = {queue.name: queue.ready + queue.scheduled + queue.expired for queue in queues if queue.paused}
    names = [f"{name} ({amount(number)})" for name, number in waiting.items() if number.number]
    advice, fine = "mongoq resume QUEUE ends a pause", "no items wait in paused queues"
    return _judge(names, "items wait in {}", advice, fine=fine, state="warning")


def check_oldest(queues: Sequence[QueueInsight], max_age: timedelta) -> Finding:
    """Check for how long the first due items wait; dead letters wait for people."""
    dead = {queue.dead_queue for queue in queues}
    aged = [queue for queue in queues if queue.oldest_age is not None and queue.name not in dead]
    aged.sort(key=lambda queue: queue.oldest_age or timedelta(), reverse=True)
    late = []
    for queue in aged:
        reason = "paused" if queue.paused else queue.limits.reason if queue.limits else None
        if queue.oldest_age is not None and queue.oldest_age > max_age:
            late.append(f"{queue.name} ({_age(queue)}{f', {reason}' if reason else ''})")
    fine = f"the first one waits for {_age(aged[0])}, in queue {aged[0].name}" if aged else "no item is due"
    return _judge(late, "due items wait in {}", "see whether the workers fail, or are too few", fine=fine)


def check_sequences(stuck: Mapping[str, BoundedCount]) -> Finding:
    """Check that each sequence has its first item, and no more: others wait for ever, or run beside each other."""
    names = [f"{name} ({amount(number, 'sequence')})" for name, number in stuck.items() if number.number]
    is_all = all(number.exact for number in stuck.values())
    fine = "each is in order" if is_all else "the first 1,000 of each queue are in order"
    advice = "another program may have deleted documents; mongoq repair-sequences QUEUE lets them go on in order"
    problem = "sequences are blocked, or out of order, in {}"
    return _judge(names, problem, advice, fine=fine if stuck else "no queue has any")


def check_held(held: Mapping[str, BoundedCount]) -> Finding:
    """Check that no dead letter holds a sequence: its other items wait until a person decides."""
    texts = [f"{amount(number, 'sequence')} of {name}" for name, number in held.items()]
    verb = "is" if [number.number for number in held.values()] == [1] else "are"
    advice = "replay or remove them: mongoq dead list QUEUE shows them, mongoq dead replay QUEUE sends them back"
    return _judge(texts, f"{{}} {verb} held by dead letters", advice, fine="no dead letter holds any", state="warning")


def check_schedules(schedules: Sequence[ScheduleRecord]) -> Finding:
    """Check that schedules tick in time, can be read, and belong to running code."""
    broken = [f"{schedule.name} ({schedule.trouble})" for schedule in schedules if schedule.trouble is not None]
    late = [f"{each.name} ({timedelta(seconds=int(each.late.total_seconds()))})" for each in schedules if each.late]
    unseen = [f"{schedule.name} since {schedule.seen:{SECOND}} UTC" for schedule in schedules if schedule.unseen]
    if broken:
        return _judge(broken, "unusable are {}", "define them again, or mongoq schedules remove NAME")
    if late:
        advice = "start a worker, with the function of the schedule if one makes its payload, and the extra schedules"
        return _judge(late, "no worker has made the ticks of {}", advice)
    fine = f"{len(schedules)} in time" if schedules else "there are none"
    advice = "mongoq schedules prune deletes them"
    return _judge(unseen, "no running code has {}", advice, fine=fine, state="warning")


def _age(queue: QueueInsight) -> str:
    age = queue.oldest_age or timedelta()
    return str(timedelta(seconds=int(age.total_seconds())))


def _judge(names: Sequence[str], sentence: str, advice: str = "", *, fine: str = "", state: str = "problem") -> Finding:
    """Return a finding with the first of these names in its sentence; without any name, all is fine."""
    if not names:
        return Finding("ok", fine)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return Finding(state, sentence.format(", ".join(names[:SHOWN]) + more), advice)
