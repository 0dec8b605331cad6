# Generated from mongoq/core/base/bootstrap.py by scripts/unasync.py. Do not edit.
"""Checks before a broker's first command (the schema document, the indexes, the clock), and of its health."""

from __future__ import annotations

import os
from datetime import UTC

from mongoq.core.base.bootstrap import (
    CLOCK_SAMPLES,
    INDEX_FAULTS,
    _database_command,
    hello_command,
    is_broker_ready,
    is_unauthorized,
    logger,
)
from mongoq.core.command import Command, Duplicate, Interruption
from mongoq.core.state.context import BrokerContext
from mongoq.core_threads.base.find import find_one
from mongoq.core_threads.base.retry import retry_and_report, retry_until_reply, run_for_callers
from mongoq.core_threads.perform import perform
from mongoq.data.clock import Sample, ServerClock
from mongoq.data.indexes import INDEXES, MAX_INDEXES, OLDEST_READER, SCHEMA_ID, SCHEMA_VERSION
from mongoq.errors import CollectionSharded, CollectionUnsuitable, SchemaTooNew


def ensure_broker_ready(broker: BrokerContext, *, write: bool) -> None:
    """Check the collection, create the indexes and read the server's clock, once per broker.

    Almost always there is nothing to do. A crash between the steps leaves indexes that the next
    process finds and completes. All of its commands are safe to repeat, and are sent again when a reply is lost.
    """

    def is_due() -> bool:
        return not is_broker_ready(broker, write=write)

    def prepare() -> None:
        if not broker.checked:
            check_collection(broker)
        if write and not broker.indexed:
            ensure_indexes(broker)
        if broker.clock.due():
            _calibrate(broker)

    if is_due():
        run_for_callers("ready", is_due, prepare, is_shared=broker.group_commit)


def ensure_transactional(broker: BrokerContext) -> None:
    """Make the collection ready, and refuse a server without transactions before anything is written."""
    require: Command[None] = Command("require", {}, target="sessions")
    # Before any I/O: a broker whose client is known to have no transactions is refused at once.
    perform(require)
    ensure_broker_ready(broker, write=False)
    perform(require)  # the client knows the kind of server by now
    ensure_broker_ready(broker, write=True)


def check_collection(broker: BrokerContext) -> bool:
    """Refuse a sharded collection and a schema from the future (``hello``, ``listCollections``, ``find``).

    Return whether the schema document exists. A user without the right to list collections relies on it: the process
    that wrote the document has checked the collection before.
    """
    refusal: Exception | None = None
    if not broker.serverless:
        hello = retry_until_reply(hello_command())
        if hello.get("msg") == "isdbgrid":
            # A mongos also serves collections that are not sharded, and those are usable.
            stats = retry_until_reply(_database_command({"collStats": broker.collection}))
            if stats.get("sharded"):
                raise CollectionSharded(broker.namespace)
        try:
            _check_options(broker)
        except Exception as error:
            if not is_unauthorized(error):
                raise
            refusal = error
    schema = find_one(broker, {"_id": SCHEMA_ID})
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


def _check_options(broker: BrokerContext) -> None:
    """Refuse a collection that loses items (capped), changes equality (a collation) or refuses them, and a view."""
    command = {"listCollections": 1, "filter": {"name": broker.collection}}
    listed = retry_until_reply(_database_command(command))
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


def hello(broker: BrokerContext) -> None:
    """Make one round trip to the server."""
    if not broker.serverless:
        retry_until_reply(hello_command())


def find_faults(broker: BrokerContext) -> list[str]:
    """Return what is wrong with the server that answers; raise the error of a server or collection that is unusable.

    ``hello``, ``listCollections`` and ``find`` of the schema document.
    """
    faults = []
    if not broker.serverless:
        hello = retry_until_reply(hello_command())
        if not hello.get("isWritablePrimary"):
            faults.append("the server that answers is not the primary of its replica set, which alone takes writes")
    check_collection(broker)
    return faults


def ensure_indexes(broker: BrokerContext) -> None:
    """Create the indexes and write the schema document (``createIndexes``, ``insert``), both idempotent.

    It runs outside any session: creating an index inside a transaction aborts it. A user without the right to
    create indexes passes when the indexes exist already.
    """
    exists = check_collection(broker)
    if not broker.serverless:
        indexes = [index.document() for index in INDEXES]
        command = {"createIndexes": broker.collection, "indexes": indexes, "writeConcern": {"w": "majority"}}
        try:
            retry_until_reply(_database_command(command))
        except Exception as error:
            if (advice := INDEX_FAULTS.get(getattr(error, "code", None))) is not None:
                cause = (getattr(error, "details", None) or {}).get("errmsg", str(error))
                raise CollectionUnsuitable(
                    broker.namespace, f"cannot have mongoq's indexes: {cause}; {advice}"
                ) from error
            if not (exists and is_unauthorized(error) and (_has_indexes(broker))):
                raise
        else:
            if exists:
                _has_indexes(broker)
    if not exists:
        write_schema()
    broker.indexed = True


def write_schema() -> None:
    """Write the schema document (``insert``); one that is there already stays."""
    schema = {"_id": SCHEMA_ID, "version": SCHEMA_VERSION, "oldest_reader": OLDEST_READER}
    try:
        retry_until_reply(Command("insert_one", {"document": schema}))
    except Duplicate:
        pass


def _has_indexes(broker: BrokerContext) -> bool:
    """Return whether the indexes exist (``listIndexes``), and refuse hidden ones.

    A user without that right relies on the schema document.
    """
    command = {"listIndexes": broker.collection, "cursor": {"batchSize": MAX_INDEXES}}
    try:
        reply = retry_until_reply(_database_command(command))
    except Exception as error:
        if is_unauthorized(error):
            return True  # the schema document is written only after the indexes exist
        raise
    there = {index["name"]: index for index in reply["cursor"]["firstBatch"]}
    if hidden := [index.name for index in INDEXES if there.get(index.name, {}).get("hidden")]:
        shown = f"db.runCommand({{collMod: '{broker.collection}', index: {{name: '{hidden[0]}', hidden: false}}}})"
        raise CollectionUnsuitable(broker.namespace, f"has hidden {', '.join(hidden)} from the server's plans; {shown}")
    return there.keys() >= {index.name for index in INDEXES}


def _calibrate(broker: BrokerContext) -> None:
    """Measure the server's clock; when a later measurement fails, the known offset stays in use."""
    clock = broker.clock
    assert isinstance(clock, ServerClock)
    # Concurrent callers skip a repeated measurement, and wait for the first one: no operation can do without it.
    broker.measuring = os.getpid() if broker.measured else 0

    def take_sample() -> Sample:
        sent_at = clock.local()
        hello = perform(hello_command())
        # The driver decodes replies of commands without our codec options: dates are naive, in UTC.
        return Sample(sent_at, clock.local(), hello["localTime"].replace(tzinfo=UTC))

    try:
        samples = []
        for _ in range(CLOCK_SAMPLES):
            sample, _ = retry_and_report(take_sample)
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
