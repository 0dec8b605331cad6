"""How many functions, and modules, of ours an operation goes through: a reader of the code has to follow them all.

The bounds may be lowered, and are not to be raised without a reason.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import mongoq
from tests.integration.commands import listened_to
from tests.waiting import until

OURS = str(Path(mongoq.__file__).parent) + os.sep
PUSH_FUNCTIONS, PUSH_MODULES = 22, 12
HANDLED_FUNCTIONS, HANDLED_MODULES = 54, 25
STAGE_FUNCTIONS, STAGE_MODULES = 60, 26
"""With Python 3.11: calls of functions in a push, a generator each time that it goes on; functions otherwise."""


class Steps:
    """The functions of ours that are entered, in all threads that begin after it."""

    def __init__(self) -> None:
        self.entered: list[tuple[int, CodeType]] = []

    @property
    def files(self) -> list[str]:
        return [code.co_filename for _, code in self.entered]

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.entered.append((threading.get_ident(), frame.f_code))

    def __enter__(self) -> Steps:
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def test_a_push_goes_through_few_functions(broker: mongoq.Broker) -> None:
    """The least of several: now and then one looks at the settings, the clock or the topology as well."""
    queue, counted = broker.queue("orders"), []
    queue.push(0)
    for n in range(5):
        with Steps() as steps:
            queue.push(n)
        counted.append((len(steps.files), len(set(steps.files))))
    assert (0, 0) < min(counted) <= (PUSH_FUNCTIONS, PUSH_MODULES), counted
    assert min(modules for _, modules in counted) <= PUSH_MODULES


def count_settlement(uri: str, database: str, start: Callable[[mongoq.Broker, Any], Any]) -> tuple[int, int]:
    """Return the functions and modules between the return of a handler and its settlement; the least of several items.

    They are those of the thread that has called the handler, and of the one that settles. ``start`` starts what calls
    the handler, and returns it.
    """
    steps, counted = Steps(), list[tuple[int, int]]()
    returned: tuple[int, int] | None = None

    def handle(payload: int) -> int:
        nonlocal returned
        returned = threading.get_ident(), len(steps.entered)
        return payload

    def settle(name: str, body: Any) -> None:
        if returned is None or name not in ("delete", "update") or "token" not in str(body):
            return
        threads = returned[0], threading.get_ident()
        codes = {code for thread, code in steps.entered[returned[1] :] if thread in threads}
        counted.append((len(codes), len({code.co_filename for code in codes})))

    with listened_to(uri, database) as (broker, commands), steps:
        commands.before = settle
        queue, running = broker.queue("orders"), start(broker, handle)
        for number in range(1, 6):
            queue.push(number)
            until(lambda: len(counted) >= number)  # noqa: B023
        running.stop()
    return min(counted)


def test_what_a_handler_returned_is_settled_by_few_functions(uri: str, database: str) -> None:
    def start(broker: mongoq.Broker, handle: Any) -> mongoq.Worker:
        worker = mongoq.Worker(broker)
        worker.consumer("orders")(handle)
        threading.Thread(target=worker.run).start()
        return worker

    functions, modules = count_settlement(uri, database, start)
    assert 0 < functions <= HANDLED_FUNCTIONS, functions
    assert 0 < modules <= HANDLED_MODULES, modules


def test_so_is_what_a_stage_returned(uri: str, database: str) -> None:
    def start(broker: mongoq.Broker, handle: Any) -> mongoq.Run:
        pipeline = mongoq.Pipeline("line", errors="errors", outputs="done")
        pipeline.stage("orders", to="done")(handle)
        return pipeline.start(broker)

    functions, modules = count_settlement(uri, database, start)
    assert 0 < functions <= STAGE_FUNCTIONS, functions
    assert 0 < modules <= STAGE_MODULES, modules
