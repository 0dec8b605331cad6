"""How many functions, and modules, of ours an operation goes through: a reader of the code has to follow them all.

The bounds may be lowered, and are not to be raised without a reason.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import mongoq

OURS = str(Path(mongoq.__file__).parent) + os.sep
PUSH_FUNCTIONS, PUSH_MODULES = 22, 12
HANDLED_FUNCTIONS, HANDLED_MODULES = 50, 41
"""With Python 3.11: functions that are entered, a generator each time that it goes on; and modules."""
WINDOW = 40


class Steps:
    """The functions of ours that are entered, in all threads that begin after it."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.files.append(frame.f_code.co_filename)

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


def test_what_a_handler_returned_is_settled_by_few_functions(broker: mongoq.Broker) -> None:
    """All that a worker does while some handlers end, claims included, for each of them; the least of several times."""
    number, marks = 200, []
    broker.queue("orders").push_many(range(number))
    worker = mongoq.Worker(broker)
    steps = Steps()

    def handle(payload: int) -> None:
        marks.append(len(steps.files))
        if len(marks) == number:
            worker.stop()

    worker.consumer("orders")(handle)
    with steps:
        worker.run()
    windows = [steps.files[marks[start] : marks[start + WINDOW]] for start in range(0, number - WINDOW, WINDOW)]
    functions, modules = min(len(window) for window in windows) / WINDOW, min(len(set(window)) for window in windows)
    assert 0 < functions <= HANDLED_FUNCTIONS, functions
    assert 0 < modules <= HANDLED_MODULES, modules
