"""The third table of crashes in ``docs/envelope.md``, row by row: the collection, and the settings of a queue."""

from __future__ import annotations

from functools import partial
from typing import Any

import mongoq
from tests.docs.crashing import DAY, ID, Live, Operation, Prepare, Process, Row, check, deaths

INDEXES = {"_id_", *(f"mongoq1_{name}" for name in ("claim", "key", "history", "sequence", "expires"))}


def _first_write(process: Process) -> Operation:
    process.raw.drop()
    process.starts_anew()
    return partial(process.queue().push, 1, id=ID)


def _first_write_with_settings(process: Process) -> Operation:
    process.queue().resume()  # so that there is a document, to which settings are added one by one
    return partial(process.queue(lease=60, history=DAY).push, 1, id=ID)


def _configure(**options: Any) -> Prepare:
    def prepare(process: Process) -> Operation:
        queue = process.queue(history=DAY)
        queue.push(1, id=ID, once=0.001)
        queue.pop()
        return partial(queue.configure, history=2 * DAY, **options)

    return prepare


def _pause(process: Process) -> Operation:
    queue = process.queue()
    queue.resume()
    return queue.pause


def _resume(process: Process) -> Operation:
    queue = process.queue()
    queue.pause()
    return queue.resume


def _bind(process: Process) -> Operation:
    return partial(process.broker.bind, "orders", "billing", "shipping")


def _unbind(process: Process) -> Operation:
    _bind(process)()
    return partial(process.broker.unbind, "orders")


def _drop(*, force: bool) -> Prepare:
    def prepare(process: Process) -> Operation:
        queue = process.queue(history=DAY)
        queue.push("kept")
        queue.commit(queue.reserve())
        if force:
            queue.push(1, id=ID)
        process.broker.stats()
        return partial(process.broker.drop_queue, "orders", force=force)

    return prepare


def _stored_of_it(process: Process) -> str:
    processed = process.raw.count_documents({"q": "orders", "processed": {"$exists": True}})
    controls = [kind for kind in ("stats", "queue") if process.raw.find_one({"_id": f"{kind}:orders"})]
    return ", ".join([process.found(), *["history"] * processed, *controls])


def _bound(process: Process) -> str:
    return ", ".join(process.another().bindings().get("orders", ())) or "none"


def _collection(process: Process) -> str:
    indexes = set(process.raw.index_information()) if process.raw.database.list_collection_names() else set()
    schema = process.raw.count_documents({"_id": "schema:mongoq"})
    parts = [*(["indexes"] if indexes == INDEXES else indexes), *["schema"] * schema]
    return ", ".join([*parts, process.found()])


def _stored(process: Process) -> str:
    document = process.raw.find_one({"_id": "queue:orders"})
    return f"{len(document.get('settings', {}))} settings, {process.found()}"


def _retention(process: Process) -> str:
    queue, document = process.another().queue("orders"), process.document()
    queue.is_paused()  # reads the settings
    return f"{queue.settings.history}; kept for {document['expires'] - document['processed']}"


def _paused(process: Process) -> str:
    return "paused" if process.another().queue("orders").is_paused() else "not paused"


ONE_DAY, CHANGED, TWO_DAYS = (
    "1 day, 0:00:00; kept for 1 day, 0:00:00",
    "2 days, 0:00:00; kept for 1 day, 0:00:00",
    "2 days, 0:00:00; kept for 2 days, 0:00:00",
)

ROWS = [
    Row(
        "the first write",
        _first_write,
        ["nothing", "indexes, nothing", "indexes, schema, nothing", "indexes, schema, orders ready 0"],
        look=_collection,
    ),
    Row(
        "the first write after code has given settings",
        _first_write_with_settings,
        [
            "0 settings, nothing",
            "1 settings, nothing",
            "2 settings, nothing",
            "2 settings, orders ready 0",
        ],
        look=_stored,
    ),
    Row("`configure`", _configure(), [ONE_DAY, CHANGED], look=_retention),
    Row("`configure(existing=True)`", _configure(existing=True), [ONE_DAY, CHANGED, TWO_DAYS], look=_retention),
    Row("`pause`", _pause, ["not paused", "paused"], look=_paused),
    Row("`resume`", _resume, ["paused", "not paused"], look=_paused),
    Row(
        "`drop_queue`",
        _drop(force=False),
        ["nothing, history, stats, queue", "nothing, stats, queue", "nothing"],
        look=_stored_of_it,
    ),
    Row(
        "`drop_queue(force=True)`",
        _drop(force=True),
        [
            "orders ready 0, history, stats, queue",
            "nothing, history, stats, queue",
            "nothing, stats, queue",
            "nothing",
        ],
        look=_stored_of_it,
    ),
    Row("`bind`", _bind, ["none", "billing, shipping"], look=_bound),
    Row("`unbind`", _unbind, ["billing, shipping", "none"], look=_bound),
]


def test_what_a_crash_leaves_is_what_the_page_says(live: Live) -> None:
    check(live, "a queue", ROWS)


def test_a_first_write_that_was_killed_is_completed_by_the_next_process(live: Live) -> None:
    for process, _ in deaths(live, _first_write):
        mongoq.Broker(process.raw).queue("orders").push(2)
        assert set(process.raw.index_information()) == INDEXES
        assert process.raw.count_documents({"_id": "schema:mongoq"}) == 1


def test_settings_that_were_half_stored_are_completed_by_the_next_process_that_gives_them(live: Live) -> None:
    for process, _ in deaths(live, _first_write_with_settings):
        process.another().queue("orders", lease=60, history=DAY).push(2)
        assert set(process.raw.find_one({"_id": "queue:orders"})["settings"]) == {"lease", "history"}


def test_a_queue_that_was_half_dropped_is_dropped_by_the_same_call(live: Live) -> None:
    for process, drop in deaths(live, _drop(force=True)):
        drop()
        assert _stored_of_it(process) == "nothing"


def test_a_retention_that_was_half_changed_is_completed_by_the_same_call(live: Live) -> None:
    for process, configure in deaths(live, _configure(existing=True)):
        configure()
        assert _retention(process) == TWO_DAYS
