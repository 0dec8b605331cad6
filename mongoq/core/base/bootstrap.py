"""Checks before a broker's first command (the schema document, the indexes, the clock), and of its health."""

from __future__ import annotations

import logging
import os
from datetime import UTC
from typing import Any

from mongoq.core.base.find import find_one
from mongoq.core.base.retry import retry_and_report, retry_until_reply, run_for_callers
from mongoq.core.command import Command, Duplicate, Interruption
from mongoq.core.perform import perform
from mongoq.core.state.context import BrokerContext
from mongoq.data.clock import Sample, ServerClock
from mongoq.data.indexes import INDEXES, MAX_INDEXES, OLDEST_READER, SCHEMA_ID, SCHEMA_VERSION
from mongoq.errors import CollectionSharded, CollectionUnsuitable, SchemaTooNew

logger = logging.getLogger("mongoq.clock")

CLOCK_SAMPLES = 5
"""Round trips in one measurement of the server's clock."""
UNAUTHORIZED_CODE = 13
"""Error code of the server when the user lacks a right."""
INDEX_FAULTS: dict[Any, str] = {
    67: "drop indexes of other programs: mongoq needs five",
    85: "drop the other index, and call broker.ensure_indexes()",
    86: "drop the index of that name, and call broker.ensure_indexes()",
}
"""What to do where the server cannot make the indexes, by its error code: too many, the same keys, the same name."""


async def ensure_broker_ready(broker: BrokerContext, *, write: bool) -> None:
    """Check the collection, create the indexes and read the server's clock, once per broker.

    Almost always there is nothing to do. A crash between the steps leaves indexes that the next
    process finds and completes. All of its commands are safe to repeat, and are sent again when a reply is lost.
    """

    def is_due() -> bool:
        return not is_broker_ready(broker, write=write)

    async def prepare() -> None:
        if not broker.checked:
            await check_collection(broker)
        if write and not broker.indexed:
            await ensure_indexes(broker)
        if broker.clock.due():
            await _calibrate(broker)

    if is_due():
        await run_for_callers("ready", is_due, prepare, is_shared=broker.group_commit)


def is_broker_ready(broker: BrokerContext, *, write: bool) -> bool:
    """Return whether ``ensure_broker_ready`` has nothing to do."""
    is_checked = broker.checked and (broker.indexed or not write)
    return is_checked and (not broker.clock.due() or broker.measuring == os.getpid())


async def ensure_transactional(broker: BrokerContext) -> None:
    """Make the collection ready, and refuse a server without transactions before anything is written."""
    require: Command[None] = Command("require", {}, target="sessions")
    # Before any I/O: a broker whose client is known to have no transactions is refused at once.
    await perform(require)
    await ensure_broker_ready(broker, write=False)
    await perform(require)  # the client knows the kind of server by now
    await ensure_broker_ready(broker, write=True)


async def check_collection(broker: BrokerContext) -> bool:
    """Refuse a sharded collection and a schema from the future (``hello``, ``listCollections``, ``find``).

    Return whether the schema document exists. A user without the right to list collections relies on it: the process
    that wrote the document has checked the collection before.
    """
    refusal: Exception | None = None
    if not broker.serverless:
        hello = await retry_until_reply(hello_command())
        if hello.get("msg") == "isdbgrid":
            # A mongos also serves collections that are not sharded, and those are usable.
            stats = await retry_until_reply(_database_command({"collStats": broker.collection}))
            if stats.get("sharded"):
                raise CollectionSharded(broker.namespace)
        try:
            await _check_options(broker)
        except Exception as error:
            if not is_unauthorized(error):
                raise
            refusal = error
    schema = await find_one(broker, {"_id": SCHEMA_ID})
    if schema is not None:
        version, oldest_reader = schema.get("version"), schema.get("oldest_reader")
        if not isinstance(version, int) or not isinstance(oldest_reader, int):
            problem = f"has no version; mend {SCHEMA_ID!r} in it, as a version {SCHEMA_VERSION} of mongoq writes it"
            raise CollectionUnsuitable(broker.namespace, problem)
        if oldest_reader > SCHEMA_VERSION:
            raise SchemaTooNew(broker.namespace, version, oldest_reader, SCHEMA_VERSION)
    if schema is None and refusal is not None:
        raise refusal
    broker.checked = True
    return schema is not None


def is_unauthorized(error: Exception) -> bool:
    """Return whether the server refuses a command for want of a right."""
    return getattr(error, "code", None) == UNAUTHORIZED_CODE


async def _check_options(broker: BrokerContext) -> None:
    """Refuse a collection that loses items (capped), changes equality (a collation) or refuses them, and a view."""
    command = {"listCollections": 1, "filter": {"name": broker.collection}}
    listed = await retry_until_reply(_database_command(command))
    for collection in listed["cursor"]["firstBatch"]:
        if collection.get("type", "collection") != "collection":
            raise CollectionUnsuitable(broker.namespace, f"is a {collection['type']}; name a plain collection")
        for option in ("capped", "collation"):
            if collection.get("options", {}).get(option):
                raise CollectionUnsuitable(broker.namespace, f"was made with {option!r}; name a plain collection")
        if collection.get("options", {}).get("validator") and collection["options"].get("validationAction") != "warn":
            remove = f"db.runCommand({{collMod: '{broker.collection}', validator: {{}}}})"
            advice = f"name a plain collection, or take the validator away: {remove}"
            raise CollectionUnsuitable(
                broker.namespace, f"has a validator, which may refuse what mongoq writes; {advice}"
            )


def hello_command() -> Command[Any]:
    """Return the ``hello`` command; the reply names the kind of server and its time."""
    return _database_command({"hello": 1})


def _database_command(command: dict[str, Any]) -> Command[Any]:
    return Command("command", {"command": command}, target="database")


async def hello(broker: BrokerContext) -> None:
    """Make one round trip to the server."""
    if not broker.serverless:
        await retry_until_reply(hello_command())


async def find_faults(broker: BrokerContext) -> list[str]:
    """Return what is wrong with the server that answers; raise the error of a server or collection that is unusable.

    ``hello``, ``listCollections`` and ``find`` of the schema document.
    """
    faults = []
    if not broker.serverless:
        hello = await retry_until_reply(hello_command())
        if not hello.get("isWritablePrimary"):
            faults.append("the server that answers is not the primary of its replica set, which alone takes writes")
    await check_collection(broker)
    return faults


def find_notes(broker: BrokerContext) -> list[str]:
    """Return how callers wait for items, where that is not by a change stream; asks no server."""
    registry = broker.registry
    if registry.deaf:
        return ["the server has no change stream, or the user no right to it: waiting callers look now and then"]
    if registry.barred:
        return ["the client has one connection only, too few for a change stream: waiting callers look now and then"]
    if registry.is_awaited() and registry.running and registry.cursor is None:
        return ["the change stream is about to be opened: until then waiting callers look now and then"]
    return []


async def ensure_indexes(broker: BrokerContext) -> None:
    """Create the indexes and write the schema document (``createIndexes``, ``insert``), both idempotent.

    It runs outside any session: creating an index inside a transaction aborts it. A user without the right to
    create indexes passes when the indexes exist already.
    """
    exists = await check_collection(broker)
    if not broker.serverless:
        indexes = [index.document() for index in INDEXES]
        command = {"createIndexes": broker.collection, "indexes": indexes, "writeConcern": {"w": "majority"}}
        try:
            await retry_until_reply(_database_command(command))
        except Exception as error:
            if (advice := INDEX_FAULTS.get(getattr(error, "code", None))) is not None:
                cause = (getattr(error, "details", None) or {}).get("errmsg", str(error))
                raise CollectionUnsuitable(
                    broker.namespace, f"cannot have mongoq's indexes: {cause}; {advice}"
                ) from error
            if not (exists and is_unauthorized(error) and (await _has_indexes(broker))):
                raise
        else:
            if exists:
                await _has_indexes(broker)
    if not exists:
        await write_schema()
    broker.indexed = True


async def write_schema() -> None:
    """Write the schema document (``insert``); one that is there already stays."""
    schema = {"_id": SCHEMA_ID, "version": SCHEMA_VERSION, "oldest_reader": OLDEST_READER}
    try:
        await retry_until_reply(Command("insert_one", {"document": schema}))
    except Duplicate:
        pass


async def _has_indexes(broker: BrokerContext) -> bool:
    """Return whether the indexes exist (``listIndexes``), and refuse hidden ones.

    A user without that right relies on the schema document.
    """
    command = {"listIndexes": broker.collection, "cursor": {"batchSize": MAX_INDEXES}}
    try:
        reply = await retry_until_reply(_database_command(command))
    except Exception as error:
        if is_unauthorized(error):
            return True  # the schema document is written only after the indexes exist
        raise
    there = {index["name"]: index for index in reply["cursor"]["firstBatch"]}
    if hidden := [index.name for index in INDEXES if there.get(index.name, {}).get("hidden")]:
        shown = f"db.runCommand({{collMod: '{broker.collection}', index: {{name: '{hidden[0]}', hidden: false}}}})"
        raise CollectionUnsuitable(broker.namespace, f"has hidden {', '.join(hidden)} from the server's plans; {shown}")
    return there.keys() >= {index.name for index in INDEXES}


async def _calibrate(broker: BrokerContext) -> None:
    """Measure the server's clock; when a later measurement fails, the known offset stays in use."""
    clock = broker.clock
    assert isinstance(clock, ServerClock)
    # Concurrent callers skip a repeated measurement, and wait for the first one: no operation can do without it.
    broker.measuring = os.getpid() if broker.measured else 0

    async def take_sample() -> Sample:
        sent_at = clock.local()
        hello = await perform(hello_command())
        # The driver decodes replies of commands without our codec options: dates are naive, in UTC.
        return Sample(sent_at, clock.local(), hello["localTime"].replace(tzinfo=UTC))

    try:
        samples = []
        for _ in range(CLOCK_SAMPLES):
            sample, _ = await retry_and_report(take_sample)
            samples.append(sample)
        clock.adopt(samples)
        broker.measured = True
    except Exception as error:
        is_answer = isinstance(error, Interruption) or getattr(error, "code", None) is not None
        if not broker.measured or not is_answer:
            raise  # without an answer no server is reachable, and the next command would wait for it again
        clock.postpone()
        logger.info("the server's clock could not be read, and is reckoned as before: %s", error)
    finally:
        broker.measuring = 0
