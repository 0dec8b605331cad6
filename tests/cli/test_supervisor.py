"""``mongoq worker --processes`` and ``--reload``: real processes, and what becomes of them and of their items."""

from __future__ import annotations

import os
import signal
import termios
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import mongoq
from mongoq.cli.child import Child, describe_exit
from mongoq.cli.file_watcher import FileWatcher
from tests.cli.programs import Program, begun, fields_of, is_alive
from tests.waiting import until

Start = Callable[..., Program]


def started(program: Start, *arguments: str, processes: int = 2, **options: str) -> Program:
    """A supervisor whose workers have begun to consume."""
    command = program("worker", "app:worker", f"--processes={processes}", *arguments, **options)
    until(lambda: len(command.logged(" starts: ")) >= processes or command.process.poll() is not None)
    assert command.process.poll() is None, command.log
    assert len(command.workers()) == processes
    return command


def test_each_process_works(program: Start, broker: mongoq.Broker, gate: Path) -> None:
    broker.queue("orders").push_many(range(4))
    command = started(program)
    runs = begun(command, 4)
    assert {int(run.split()[1]) for run in runs} == set(command.workers())
    gate.touch()
    until(lambda: len(command.said("end")) == 4)
    command.process.terminate()
    assert command.end() == 0
    assert broker.queue("orders").counts() == mongoq.Counts()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_when_their_handlers_have_ended(
    program: Start, broker: mongoq.Broker, gate: Path, number: signal.Signals
) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(10))
    command = started(program)
    begun(command, 4)
    workers = command.workers()
    command.process.send_signal(number)
    until(lambda: len(command.logged("stops: a signal came")) == 2)
    assert command.process.poll() is None
    gate.touch()
    assert command.end() == 0
    assert len(command.said("end")) == len(command.said("begin"))
    assert queue.counts() == mongoq.Counts(ready=10 - len(command.said("end")))
    assert not any(map(is_alive, workers))
    assert command.logged(f"{number.name}: workers finish what runs, and end")
    assert command.log[-1].endswith("all workers have ended")


def test_a_second_signal_ends_all_at_once(program: Start, broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(10))
    command = started(program)
    begun(command, 4)
    command.process.terminate()
    until(lambda: len(command.logged("stops: a signal came")) == 2)
    command.process.terminate()
    assert command.end() == 0
    assert not command.said("end")
    assert queue.counts() == mongoq.Counts(ready=10)


def test_a_signal_to_the_whole_group_counts_once(program: Start, broker: mongoq.Broker, gate: Path) -> None:
    """Ctrl-C at a terminal reaches each process of the group, and systemd sends SIGTERM to each of the unit."""
    broker.queue("orders").push_many(range(4))
    command = started(program)
    begun(command, 4)
    for pid in (*command.workers(), command.pid):
        os.kill(pid, signal.SIGINT)
    until(lambda: command.logged("SIGINT: workers finish what runs"))
    until(lambda: len(command.logged("stops: a signal came")) == 2)
    gate.touch()
    assert command.end() == 0
    assert not command.logged("given up")
    assert broker.queue("orders").counts() == mongoq.Counts()


def test_ctrl_c_while_workers_start_shows_no_traceback(program: Start) -> None:
    command = program("worker", "app:worker", "--processes=2", more="time.sleep(3600)")
    until(lambda: len(command.workers()) == 2)
    for pid in (*command.workers(), command.pid):
        os.kill(pid, signal.SIGINT)
    assert command.end() == 0
    assert not command.logged("Traceback")


@pytest.mark.parametrize("arguments", [[], ["--processes=2"], ["--reload"]])
def test_ctrl_c_at_a_terminal_ends_all_and_leaves_the_terminal_as_it_was(
    program: Start, broker: mongoq.Broker, gate: Path, arguments: list[str]
) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(10))
    keyboard, terminal = os.openpty()
    try:
        before = termios.tcgetattr(terminal)
        command = program("worker", "app:worker", *arguments, terminal=terminal)
        workers = 2 if "--processes=2" in arguments else 1
        begun(command, 2 * workers)
        os.write(keyboard, b"\x03")
        until(lambda: len(command.logged("stops: a signal came")) == workers)
        gate.touch()
        assert command.end() == 0
        assert termios.tcgetattr(terminal) == before
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert len(command.said("end")) == len(command.said("begin"))
    assert queue.counts() == mongoq.Counts(ready=10 - len(command.said("end")))


def test_a_killed_worker_is_started_again_and_its_items_come_back(
    program: Start, broker: mongoq.Broker, gate: Path
) -> None:
    broker.queue("orders").push_many(range(4))
    command = started(program)
    begun(command, 4)
    victim, other = command.workers()
    os.kill(victim, signal.SIGKILL)
    until(lambda: len(command.logged(" starts: ")) == 3)
    assert command.logged(f"(pid {victim}) was killed by SIGKILL; it starts again in 0.25 s")
    assert other in command.workers()
    gate.touch()
    until(lambda: broker.queue("orders").size() == 0)
    assert sorted(command.said("end")) == ["0", "1", "2", "3"]
    command.process.terminate()
    assert command.end() == 0


def test_a_worker_that_ends_by_itself_is_started_again(program: Start) -> None:
    command = started(program)
    os.kill(command.workers()[0], signal.SIGTERM)
    until(lambda: command.logged("has ended with exit code 0; it starts again"))
    until(lambda: len(command.logged(" starts: ")) == 3)
    command.process.terminate()
    assert command.end() == 0


def test_workers_end_in_good_order_when_their_supervisor_is_killed(
    program: Start, broker: mongoq.Broker, gate: Path
) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(10))
    command = started(program)
    begun(command, 4)
    workers = command.workers()
    command.process.kill()
    until(lambda: len(command.logged("the supervisor is gone")) == 2)
    gate.touch()
    until(lambda: not any(map(is_alive, workers)))
    assert queue.counts() == mongoq.Counts(ready=10 - len(command.said("end")))
    assert len(command.said("end")) >= 4


def test_items_of_workers_that_are_killed_with_their_supervisor_come_back(
    program: Start, broker: mongoq.Broker, gate: Path
) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(4))
    command = started(program)
    begun(command, 4)
    for pid in (command.pid, *command.workers()):
        os.kill(pid, signal.SIGKILL)
    gate.touch()
    again = program("worker", "app:worker", "--processes=2", "--drain")
    assert again.end() == 0, again.log
    assert sorted(again.said("end")) == ["0", "1", "2", "3"]


def test_a_process_that_a_handler_starts_inherits_nothing_of_the_supervisor(
    program: Start, broker: mongoq.Broker
) -> None:
    more = """
import subprocess, sys

LIST = "import os, stat; print(\\
    'MONGOQ_SUPERVISOR' in os.environ, \\
    [n for n in map(int, os.listdir('/dev/fd')) if n > 2 and os.path.exists(f'/dev/fd/{n}') and \\
    stat.S_ISSOCK(os.fstat(n).st_mode)])"
worker = mongoq.Worker(connect())

@worker.consumer("orders")
def start(payload):
    listed = subprocess.run([sys.executable, "-c", LIST], close_fds=False, capture_output=True, text=True)
    say("inherited", listed.stdout.strip() or listed.stderr)
"""
    broker.queue("orders").push(1)
    command = started(program, more=more)
    assert until(lambda: command.said("inherited")) == ["False []"]
    command.process.terminate()
    assert command.end() == 0


# --- crash loops and errors that last --------------------------------------------------------------


def test_a_crash_loop_ends_with_an_error(program: Start) -> None:
    command = program("worker", "app:worker", "--processes=2", more="os._exit(7)")
    assert command.end() == 1
    assert command.logged("has ended with exit code 7; it starts again in 2 s")
    assert command.logged("has ended with exit code 7, for the 5th time in a row; the supervisor gives up")


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


@pytest.mark.parametrize(("target", "code"), [("app:wroker", 2), ("app:stopping", 1)])
def test_an_error_that_a_restart_would_meet_again_ends_all(
    program: Start, broker: mongoq.Broker, target: str, code: int
) -> None:
    more = """
def refuse(payload):
    raise ValueError("no such flight")

stopping = mongoq.Pipeline("flights")
stopping.sink("orders", max_retries=0)(refuse)
"""
    broker.queue("orders").push(1)
    command = program("worker", target, "--processes=2", more=more)
    assert command.end() == code
    assert command.logged("would fail in the same way again; all workers stop")
    assert not command.logged("it starts again")
    assert broker.queue("orders").counts() == mongoq.Counts(ready=1)


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


def test_a_drain_ends_when_the_queues_are_empty(program: Start, broker: mongoq.Broker, gate: Path) -> None:
    broker.queue("orders").push_many(range(50))
    gate.touch()
    command = program("worker", "app:worker", "--processes=2", "--drain")
    assert command.end() == 0, command.log
    assert len(command.said("end")) == 50
    assert len(command.logged("has ended: its queues are empty")) == 2


def test_a_worker_that_is_killed_during_a_drain_is_started_again(
    program: Start, broker: mongoq.Broker, gate: Path
) -> None:
    broker.queue("orders").push_many(range(4))
    command = started(program, "--drain")
    begun(command, 4)
    os.kill(command.workers()[0], signal.SIGKILL)
    until(lambda: command.logged("was killed by SIGKILL"))
    gate.touch()
    assert command.end() == 0
    assert sorted(command.said("end")) == ["0", "1", "2", "3"]


def test_an_interrupted_drain_says_so(program: Start, broker: mongoq.Broker, gate: Path) -> None:
    broker.queue("orders").push_many(range(10))
    command = started(program, "--drain")
    begun(command, 4)
    command.process.terminate()
    until(lambda: len(command.logged("stops: a signal came")) == 2)
    gate.touch()
    assert command.end() == 130


def ready(command: Program) -> tuple[int, bytes]:
    [line] = until(lambda: command.logged("health is served at "))
    try:
        with urllib.request.urlopen(line.rpartition(" ")[2], timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_it_is_ready_when_all_workers_are(program: Start, tmp_path: Path) -> None:
    more = """
import fcntl

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
    victim = command.workers()[0]
    os.kill(victim, signal.SIGSTOP)
    try:
        until(lambda: b"has not reported for" in ready(command)[1])
    finally:
        os.kill(victim, signal.SIGCONT)
    until(lambda: ready(command)[0] == 200)
    command.process.terminate()
    assert command.end() == 0


def test_connection_options_travel_by_environment_and_not_by_arguments(
    program: Start, uri: str, database: str, broker: mongoq.Broker, gate: Path
) -> None:
    broker.queue("orders").push(1)
    more = "pipeline = mongoq.Pipeline('flights')\npipeline.sink('orders')(handle)"
    named = {"MONGOQ_URI": "", "MONGOQ_DATABASE": ""}
    arguments = ["--uri", uri, "--database", database]
    command = program("worker", "app:pipeline", "--processes=2", *arguments, more=more, **named)
    begun(command, 1)
    for pid in command.workers():
        assert uri not in " ".join(psutil.Process(pid).cmdline())
        assert psutil.Process(pid).environ()["MONGOQ_URI"] == uri
    gate.touch()
    command.process.terminate()
    assert command.end() == 0


def test_options_of_the_log_hold_for_all(program: Start) -> None:
    command = program("worker", "app:wroker", "--processes=2", "--log-format=json")
    assert command.end() == 2
    records = [fields_of(line) for line in command.log if line.startswith("{")]
    assert {record["logger"] for record in records} == {"mongoq.cli"}


# --- reload ----------------------------------------------------------------------------------------


def test_a_change_restarts_and_a_syntax_error_waits_for_the_next_one(program: Start, tmp_path: Path) -> None:
    command = started(program, "--reload", processes=1)
    source = (tmp_path / "app.py").read_text()
    [first] = command.workers()
    (tmp_path / "app.py").write_text(source + "\ndef broken(:\n")
    until(lambda: command.logged("app.py changed: workers start again"))
    until(lambda: command.logged("has ended with exit code 1; it starts again when a file changes"))
    assert command.logged("SyntaxError")
    assert not command.workers()
    (tmp_path / "app.py").write_text(source + "\nsay('mended')\n")
    until(lambda: command.lines == ["mended"])
    until(lambda: len(command.logged(" starts: ")) == 2)
    assert command.workers() != [first]
    command.process.send_signal(signal.SIGINT)
    assert command.end() == 0


def test_a_change_lets_handlers_end(program: Start, broker: mongoq.Broker, gate: Path, tmp_path: Path) -> None:
    broker.queue("orders").push(1)
    command = started(program, "--reload", processes=1)
    begun(command, 1)
    (tmp_path / "other.py").touch()
    until(lambda: command.logged("other.py changed"))
    gate.touch()
    until(lambda: len(command.logged(" starts: ")) == 2)
    assert command.said("end") == ["1"]
    command.process.terminate()
    assert command.end() == 0


def test_a_watcher_finds_what_was_written_added_and_removed(tmp_path: Path) -> None:
    for name in ("kept.py", "written.py", "removed.py", "other.txt"):
        (tmp_path / name).touch()
    for folder in (".git", "__pycache__", "env"):
        (tmp_path / folder).mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "package").mkdir()
    watcher = FileWatcher(tmp_path)
    assert watcher.find_changes() == []
    (tmp_path / "written.py").write_text("a = 1")
    (tmp_path / "removed.py").unlink()
    (tmp_path / "package" / "added.py").touch()
    for ignored in ("other.txt", ".git/a.py", "__pycache__/a.py", "env/a.py"):
        (tmp_path / ignored).write_text("a = 1")
    assert watcher.find_changes() == ["package/added.py", "removed.py", "written.py"]
    assert watcher.find_changes() == []


# --- a child ---------------------------------------------------------------------------------------


def test_pauses_before_restarts_grow() -> None:
    child = Child(1, [], {})
    assert [child.count_crash() for _ in range(9)] == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30]


def test_the_end_of_a_process_is_described() -> None:
    assert describe_exit(0) == "has ended with exit code 0"
    assert describe_exit(-9) == "was killed by SIGKILL"
