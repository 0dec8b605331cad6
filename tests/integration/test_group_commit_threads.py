"""Threads that share commands go on whatever happens to one of them, or to their process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.waiting import PATIENCE

REENTRANT = """
import sys, threading
from pymongo import MongoClient
from pymongo.monitoring import CommandListener
import mongoq

class Nosy(CommandListener):
    nested = 0
    def started(self, event):
        if event.command_name == "insert" and Nosy.nested < 20 and not getattr(here, "inside", False):
            here.inside = True
            Nosy.nested += 1
            queue.push("nested")
            here.inside = False
    def succeeded(self, event): pass
    def failed(self, event): pass

here = threading.local()
client = MongoClient(sys.argv[1], event_listeners=[Nosy()])
broker = mongoq.Broker(client[sys.argv[2]]["mongoq"], group_commit=True)
queue = broker.queue("orders")

def push():
    for _ in range(10):
        queue.push("own")

threads = [threading.Thread(target=push) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
broker.close()
print("done", Nosy.nested > 0)
"""


SCRIPT = """
import os, signal, sys, threading, time
import mongoq

broker = mongoq.connect(sys.argv[1], database=sys.argv[2], group_commit=True)
queue = broker.queue("orders")
stop = threading.Event()

def push(who):
    while not stop.is_set():
        queue.push(who)

threads = [threading.Thread(target=push, args=(who,)) for who in range(4)]
for thread in threads:
    thread.start()
"""

FORKED = (
    SCRIPT
    + """
for _ in range(5):
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        pushing = threading.Thread(target=queue.push, args=("child",))  # the main thread never shares
        pushing.start()
        pushing.join()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join()
broker.close()
print("done")
"""
)

INTERRUPTED = (
    SCRIPT
    + """
interrupted = 0
timer = None
for n in range(10):
    timer = threading.Timer(0.002 + 0.005 * (n % 5), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            queue.push("main")
    except KeyboardInterrupt:
        interrupted += 1
    timer.join()
before = queue.size()
while queue.size() <= before:  # the others go on
    time.sleep(0.01)
stop.set()
for thread in threads:
    thread.join()
broker.close()
print("done", interrupted)
"""
)


@pytest.mark.parametrize(
    ("script", "output"),
    [(FORKED, "done"), (INTERRUPTED, "done 10"), (REENTRANT, "done True")],
    ids=["forks", "Ctrl-C", "listens"],
)
def test_threads_go_on_sharing_whatever_happens_to_one(
    uri: str, database: str, raw: Any, script: str, output: str
) -> None:
    completed = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, uri, database],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (completed.stdout.strip(), completed.returncode) == (output, 0), completed.stderr
    if script is FORKED:
        assert raw.count_documents({"payload": "child"}) == 5
