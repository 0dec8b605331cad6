"""How many functions, and modules, of ours an operation goes through: a reader of the code has to follow them all.

The bounds may be lowered, and are not to be raised without a reason.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import mongoq
from tests.integration.commands import listened_to
from tests.waiting import PATIENCE, until

OURS = str(Path(mongoq.__file__).parent) + os.sep
PUSH_FUNCTIONS, PUSH_MODULES = 19, 10
HANDLED_FUNCTIONS, HANDLED_MODULES = 54, 24
STAGE_FUNCTIONS, STAGE_MODULES = 79, 27
"""Calls of functions in a push, functions otherwise. Comprehensions are read in place, and are none."""
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


class Steps:
    """The functions of ours that are entered, in all threads that begin after it."""

    def __init__(self) -> None:
        self.entered: list[tuple[int, CodeType]] = []

    @property
    def files(self) -> list[str]:
        return [code.co_filename for _, code in self.entered]

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code.co_name in COMPREHENSIONS:
            return
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
    """One of many: now and then, and often on a busy machine, one looks at settings, clock or topology as well."""
    queue = broker.queue("orders")
    queue.push(0)

    def push() -> tuple[int, int]:
        with Steps() as steps:
            queue.push(1)
        return len(steps.files), len(set(steps.files))

    with ThreadPoolExecutor(1) as pool:  # the main thread puts signals off as well
        for _ in range(200):
            functions, modules = pool.submit(push).result()
            if functions <= PUSH_FUNCTIONS and modules <= PUSH_MODULES:
                break
    assert 0 < functions <= PUSH_FUNCTIONS, functions
    assert 0 < modules <= PUSH_MODULES, modules


def count_settlement(
    uri: str, database: str, start: Callable[[mongoq.Broker, Any], Callable[[], None]], functions: int, modules: int
) -> tuple[int, int]:
    """Return the functions and modules entered from the return of a handler to its settlement: no more, if one can.

    They are those of the thread that has called the handler, and of the one that settles. Both may do other things in
    between, the more so on a busy machine, so there are many items. ``start`` starts what calls the handler, and
    returns what ends it.
    """
    steps, counted = Steps(), list[tuple[int, int]]()
    returned: tuple[int, int] | None = None

    def handle(payload: int) -> int:
        nonlocal returned
        returned = threading.get_ident(), len(steps.entered)
        return payload

    def settle(name: str, body: Any) -> None:
        nonlocal returned
        if returned is None or name not in ("delete", "update") or "token" not in str(body):
            return
        threads = returned[0], threading.get_ident()
        codes = {code for thread, code in steps.entered[returned[1] :] if thread in threads}
        returned = None  # the claim of the next item is an update with a token as well
        counted.append((len(codes), len({code.co_filename for code in codes})))

    with listened_to(uri, database) as (broker, commands), steps:
        commands.before = settle
        queue, stop = broker.queue("orders"), start(broker, handle)
        for number in range(1, 201):
            queue.push(number)
            until(lambda: len(counted) >= number)  # noqa: B023
            last = counted[number - 1]
            if last[0] <= functions and last[1] <= modules:
                break
        stop()
    return last


def test_what_a_handler_returned_is_settled_by_few_functions(uri: str, database: str) -> None:
    def start(broker: mongoq.Broker, handle: Any) -> Callable[[], None]:
        worker = mongoq.Worker(broker)
        worker.consumer("orders")(handle)
        thread = threading.Thread(target=worker.run)
        thread.start()

        def stop() -> None:
            worker.stop()
            thread.join(PATIENCE)

        return stop

    functions, modules = count_settlement(uri, database, start, HANDLED_FUNCTIONS, HANDLED_MODULES)
    assert 0 < functions <= HANDLED_FUNCTIONS, functions
    assert 0 < modules <= HANDLED_MODULES, modules


def test_so_is_what_a_stage_returned(uri: str, database: str) -> None:
    def start(broker: mongoq.Broker, handle: Any) -> Callable[[], None]:
        pipeline = mongoq.Pipeline("line", errors="errors", outputs="done")
        pipeline.stage("orders", to="done")(handle)
        return pipeline.start(broker).stop

    functions, modules = count_settlement(uri, database, start, STAGE_FUNCTIONS, STAGE_MODULES)
    assert 0 < functions <= STAGE_FUNCTIONS, functions
    assert 0 < modules <= STAGE_MODULES, modules
