"""``mongoq worker --processes`` and ``--reload``: real processes, and what becomes of them and of their items."""

from __future__ import annotations

import os
import signal
import termios
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

import mongoq
from tests.cli.conftest import Start
from tests.cli.programs import Program, begun, fields_of, is_alive
from tests.waiting import until


def started(program: Start, *arguments: str, processes: int = 2, **options: str) -> Program:
    """A supervisor whose workers have begun to consume."""
    command = program("worker", "app:worker", f"--processes={processes}", *arguments, **options)
    until(lambda: len(command.logged(" starts: ")) >= processes or command.process.poll() is not None)
    assert command.process.poll() is None, command.log
    assert len(command.workers()) == processes
    return command


def test_all_work_and_a_signal_ends_all_when_their_handlers_have_ended(
    program: Start, broker: mongoq.Broker, gate: Path
) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(10))
    command = started(program)
    runs = begun(command, 4)
    workers = command.workers()
    assert {int(run.split()[1]) for run in runs} == set(workers)
    command.process.terminate()
    until(lambda: len(command.logged("stops: a signal came")) == 2)
    assert command.process.poll() is None
    gate.touch()
    assert command.end() == 0
    assert len(command.said("end")) == len(command.said("begin"))
    assert queue.counts() == mongoq.Counts(ready=10 - len(command.said("end")))
    assert not any(map(is_alive, workers))
    assert command.logged("SIGTERM: workers finish what runs, and end")
    assert command.log[-1].endswith("all workers have ended")


def test_a_second_signal_ends_all_at_once(program: Start, broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(10))
    command = started(program, "--reload", processes=1)
    begun(command, 2)
    command.process.terminate()
    until(lambda: command.logged("stops: a signal came"))
    command.process.terminate()
    assert command.end() == 0
    assert not command.said("end")
    assert queue.counts() == mongoq.Counts(ready=10)


@pytest.mark.prove
def test_ctrl_c_at_a_terminal_ends_all_and_leaves_the_terminal_as_it_was(
    program: Start, broker: mongoq.Broker, gate: Path
) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(10))
    keyboard, terminal = os.openpty()
    try:
        before = termios.tcgetattr(terminal)
        command = program("worker", "app:worker", "--reload", terminal=terminal)
        begun(command, 2)
        os.write(keyboard, b"\x03")
        until(lambda: command.logged("stops: a signal came"))
        gate.touch()
        assert command.end() == 0
        assert termios.tcgetattr(terminal) == before
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert len(command.said("end")) == len(command.said("begin"))
    assert queue.counts() == mongoq.Counts(ready=10 - len(command.said("end")))


def test_workers_end_in_good_order_when_their_supervisor_is_killed(
    program: Start, broker: mongoq.Broker, gate: Path
) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(10))
    command = started(program, "--reload", processes=1)
    begun(command, 2)
    workers = command.workers()
    command.process.kill()
    until(lambda: command.logged("the supervisor is gone"))
    gate.touch()
    until(lambda: not any(map(is_alive, workers)))
    command.end()  # all that was printed is read
    assert queue.counts() == mongoq.Counts(ready=10 - len(command.said("end")))
    assert len(command.said("end")) >= 2


def test_connection_options_travel_by_environment_and_a_handler_passes_on_nothing_of_the_supervisor(
    program: Start, uri: str, database: str, broker: mongoq.Broker
) -> None:
    more = """
import subprocess, sys

LIST = "import os, stat; print(\\
    'MONGOQ_SUPERVISOR' in os.environ, \\
    [n for n in map(int, os.listdir('/dev/fd')) if n > 2 and os.path.exists(f'/dev/fd/{n}') and \\
    stat.S_ISSOCK(os.fstat(n).st_mode)])"
pipeline = mongoq.Pipeline("flights")

@pipeline.sink("orders")
def start(payload):
    listed = subprocess.run([sys.executable, "-SEc", LIST], close_fds=False, capture_output=True, text=True)
    say("inherited", listed.stdout.strip() or listed.stderr)
"""
    broker.queue("orders").push(1)
    named = {"MONGOQ_URI": "", "MONGOQ_DATABASE": ""}
    arguments = ["--uri", uri, "--database", database]
    command = program("worker", "app:pipeline", "--reload", *arguments, more=more, **named)
    assert until(lambda: command.said("inherited")) == ["False []"]
    [pid] = command.workers()
    assert uri not in " ".join(psutil.Process(pid).cmdline())
    assert psutil.Process(pid).environ()["MONGOQ_URI"] == uri
    command.process.terminate()
    assert command.end() == 0


# --- crash loops and errors that last --------------------------------------------------------------


@pytest.mark.prove
def test_a_module_that_raises_is_tried_again_and_shows_its_error(program: Start, tmp_path: Path) -> None:
    """What it needs may not be there yet, such as a server."""
    more = """
if not os.path.exists("ready"):
    open("ready", "w").close()
    raise ValueError("no stock")
worker = make(connect())
"""
    command = program("worker", "app:worker", "--processes=2", more=more)
    until(lambda: len(command.logged(" starts: ")) == 2)
    assert command.logged("ValueError: no stock")
    assert command.logged("has ended with exit code 1; it starts again")
    command.process.terminate()
    assert command.end() == 0


@pytest.mark.prove
def test_an_error_that_a_restart_would_meet_again_ends_all(program: Start, broker: mongoq.Broker) -> None:
    more = """
def refuse(payload):
    raise ValueError("no such flight")

stopping = mongoq.Pipeline("flights")
stopping.sink("orders", max_retries=0)(refuse)
"""
    broker.queue("orders").push(1)
    command = program("worker", "app:stopping", "--processes=2", "--log-format=json", more=more)
    assert command.end() == 1
    assert command.logged("would fail in the same way again; all workers stop")
    # Options of the log are those of the processes too.
    assert {"mongoq.cli", "mongoq.worker"} == {fields_of(line)["logger"] for line in command.log}
    assert not command.logged("it starts again")
    assert broker.queue("orders").counts() == mongoq.Counts(ready=1)


@pytest.mark.prove
def test_a_worker_that_does_not_end_is_killed_after_its_grace(program: Start, broker: mongoq.Broker) -> None:
    more = """
import threading
worker = mongoq.Worker(connect(), grace=0)
threading.Thread(target=time.sleep, args=(3600,)).start()
worker.consumer("orders", lease=1, concurrency=2, prefetch=0)(handle)
"""
    # The thread is no daemon, so the interpreter waits for it when the worker has ended.
    command = started(program, more=more)
    workers = command.workers()
    command.process.terminate()
    assert command.end() == 1
    for worker in workers:
        assert command.logged(f"(pid {worker}) has not ended in time, and is killed")
        assert not is_alive(worker)


# --- drain, health, options ------------------------------------------------------------------------


def test_a_worker_that_is_killed_during_a_drain_is_started_again(
    program: Start, broker: mongoq.Broker, gate: Path
) -> None:
    broker.queue("orders").push_many(range(4))
    command = started(program, "--drain")
    begun(command, 4)
    os.kill(command.workers()[0], signal.SIGKILL)
    until(lambda: command.logged("was killed by SIGKILL; it starts again in 0.25 s"))
    gate.touch()
    assert command.end() == 0
    assert len(command.logged("has ended: its queues are empty")) == 2
    assert sorted(command.said("end")) == ["0", "1", "2", "3"]


def ready(command: Program) -> tuple[int, bytes]:
    [line] = until(lambda: command.logged(" are served at "))
    try:
        with urllib.request.urlopen(f"{line.rpartition(' ')[2]}/readyz", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.prove
def test_it_is_ready_when_all_workers_are(program: Start, broker: mongoq.Broker, gate: Path, tmp_path: Path) -> None:
    broker.queue("orders").push(1)
    more = """
import datetime
import fcntl
import mongoq.worker.time_limit

mongoq.worker.time_limit.LONG_RUN = datetime.timedelta(seconds=0.1)

# One process loads at once, and the other when a file is there.
lock = open("lock", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    say("waits")
    while not os.path.exists("loaded"):
        time.sleep(0.005)
worker = make(connect())
"""
    command = program("worker", "app:worker", "--processes=2", "--http=127.0.0.1:0", more=more)
    until(lambda: command.logged(" starts: ") and "waits" in command.lines)
    until(lambda: ready(command)[1].count(b"it has not started") == 1)
    assert ready(command)[0] == 503
    (tmp_path / "loaded").touch()
    until(lambda: ready(command)[0] == 200)
    until(lambda: b" has run item " in ready(command)[1])
    gate.touch()
    command.process.terminate()
    assert command.end() == 0


# --- reload ----------------------------------------------------------------------------------------


@pytest.mark.prove
def test_a_change_restarts_when_handlers_have_ended_and_a_syntax_error_waits_for_the_next_one(
    program: Start, broker: mongoq.Broker, gate: Path, tmp_path: Path
) -> None:
    broker.queue("orders").push(1)
    command = started(program, "--reload", processes=1)
    begun(command, 1)
    source = (tmp_path / "app.py").read_text()
    [first] = command.workers()
    (tmp_path / "app.py").write_text(source + "\ndef broken(:\n")
    until(lambda: command.logged("app.py changed: workers start again"))
    assert command.workers() == [first]
    gate.touch()
    until(lambda: command.logged("has ended with exit code 1; it starts again when a file changes"))
    assert command.said("end") == ["1"]
    assert command.logged("SyntaxError")
    assert not command.workers()
    (tmp_path / "app.py").write_text(source + "\nsay('mended')\n")
    until(lambda: "mended" in command.lines)
    until(lambda: len(command.logged(" starts: ")) == 2)
    assert command.workers() != [first]
    command.process.send_signal(signal.SIGINT)
    assert command.end() == 0


@pytest.mark.prove
def test_a_crash_loop_ends_with_an_error(program: Start) -> None:
    command = program("worker", "app:worker", "--processes=2", more="raise SystemExit(7)")
    assert command.end() == 1
    assert command.logged("it starts again in 0.5 s")
    assert command.logged("for the 5th time in a row; the supervisor gives up")


@pytest.mark.prove
def test_ctrl_c_while_workers_start_shows_no_traceback(program: Start) -> None:
    command = program("worker", "app:worker", "--reload", more="time.sleep(3600)")
    until(command.workers)
    for pid in (*command.workers(), command.pid):
        os.kill(pid, signal.SIGINT)
    assert command.end() == 0
    assert not command.logged("Traceback")
