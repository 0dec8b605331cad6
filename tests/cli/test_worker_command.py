"""``mongoq worker`` in one process: what it runs, how it ends, and what it says."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import mongoq
from tests.cli.conftest import RunHere as Run
from tests.cli.conftest import Start
from tests.cli.programs import Program, begun, fields_of, is_alive
from tests.waiting import until

TARGETS = """
from pymongo import AsyncMongoClient

def work(payload):
    say("done", payload)

async def work_async(payload):
    say("done", payload)

def pipeline_of(handler):
    pipeline = mongoq.Pipeline("flights")
    pipeline.sink("orders")(handler)
    return pipeline

def consuming(worker, handler=work):
    worker.consumer("orders")(handler)
    return worker

def collection(client):
    return client(os.environ["MONGOQ_URI"])[os.environ["MONGOQ_DATABASE"]]["mongoq"]

if os.environ.get("TARGET") == "worker":
    worker = consuming(mongoq.Worker(connect()))
if os.environ.get("TARGET") == "async_worker":
    async_worker = consuming(mongoq.AsyncWorker(mongoq.AsyncBroker(collection(AsyncMongoClient))), work_async)

pipeline = pipeline_of(work)
async_pipeline = pipeline_of(work_async)

def make_worker():
    return consuming(mongoq.Worker(connect()))

def make_with(broker):
    return consuming(mongoq.Worker(broker))

def make_async_with(broker: mongoq.AsyncBroker):
    return consuming(mongoq.AsyncWorker(broker), work_async)

async def make_in_loop():
    broker = await mongoq.connect_async(os.environ["MONGOQ_URI"], database=os.environ["MONGOQ_DATABASE"])
    return consuming(mongoq.AsyncWorker(broker), work_async)

async def make_in_loop_with(broker):
    return consuming(mongoq.AsyncWorker(broker), work_async)

async def make_threads_in_loop(broker: mongoq.Broker):
    return consuming(mongoq.Worker(broker))

def make_pipeline():
    return async_pipeline

make_lambda = lambda: make_in_loop()

def make_nothing():
    pass

def make_number():
    return 3

def of_two(broker, shop):
    pass

number = 3

class Shop:
    pass

def fail():
    raise ValueError("no stock")

def empty(broker):
    return mongoq.Worker(broker)

def make_stopping():
    def refuse(payload):
        raise ValueError("no such flight")
    pipeline = mongoq.Pipeline("flights")
    pipeline.sink("orders", max_retries=0)(refuse)
    return pipeline
"""
NAMES = (
    "async_pipeline",
    "make_worker",
    "make_async_with",
    "make_in_loop",
    "make_threads_in_loop",
    "make_pipeline",
    "make_lambda",
    pytest.param("worker", marks=pytest.mark.prove),
    pytest.param("async_worker", marks=pytest.mark.prove),
    pytest.param("pipeline", marks=pytest.mark.prove),
    pytest.param("make_in_loop_with", marks=pytest.mark.prove),
)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_workers_pipelines_and_what_makes_them_until_the_queues_are_empty(
    program: Start, program_here: Run, broker: mongoq.Broker, name: str
) -> None:
    broker.queue("orders").push_many(range(3))
    # The client of the asyncio worker is that of the program, which closes it by its end.
    command = (program if name == "async_worker" else program_here)(
        "worker", f"app:{name}", "--drain", more=TARGETS, TARGET=name
    )
    assert command.end() == 0, command.log
    assert sorted(command.said("done")) == ["0", "1", "2"]
    assert broker.queue("orders").size() == 0
    # Brokers are closed at the end, so that what was counted is written.
    assert broker.stats()["orders"].commit == 3


def test_settings_of_the_project_name_the_server(program_here: Run, uri: str, database: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.mongoq]\nuri = "{uri}"\ndatabase = "{database}"\n')
    options = {"MONGOQ_URI": "", "MONGOQ_DATABASE": ""}
    command = program_here("worker", "app:make_with", "--drain", more=TARGETS, **options)
    assert command.end() == 0, command.log


# --- errors --------------------------------------------------------------------------------------


def test_a_target_that_cannot_run_is_an_error_that_says_why(program_here: Run) -> None:
    for target, code, sentence in (
        ("app:wroker", 2, "has no 'wroker' in it; it has "),
        ("ap:worker", 2, "there is no module 'ap' in "),
        ("app.worker:main", 2, "module 'app'"),
        ("app", 2, "is not MODULE:OBJECT"),
        (":worker", 2, "is not MODULE:OBJECT"),
        ("app.py:worker", 2, "name a module as import does: app"),
        ("./jobs/app.py:worker", 2, "name a module as import does: jobs.app"),
        ("app:make_nothing", 2, "app:make_nothing returned None"),
        ("app:make_number", 2, "an object of type int"),
        ("app:work", 2, "app:work is a function of (payload)"),
        ("app:of_two", 2, "name it broker"),
        ("app:number", 2, "app:number is of type int, and not a Worker"),
        ("app:Shop", 2, "app:Shop is the class Shop, and not a Worker"),
        ("app:fail", 1, "ValueError: no stock"),
        ("app:empty", 2, "it has no consumers"),
    ):
        command = program_here("worker", target, more=TARGETS)
        assert command.end() == code, target
        assert sentence in "\n".join(command.log)
        assert not command.logged("/mongoq/cli/")


def test_a_module_that_raises_shows_the_frames_of_the_user(program_here: Run) -> None:
    raising = "def fail():\n    raise ValueError('no stock')\n\nfail()"
    connecting = "mongoq.connect('mongodb://ada:secret@127.0.0.1:9', timeout=0.1)"
    caused = "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise mongoq.MongoqError from error"
    modules: list[tuple[str, int, list[str]]] = [
        (raising, 1, ["in <module>", "in fail", "ValueError: no stock"]),
        ("import shop_that_is_missing", 1, ["app.py", "No module named 'shop_that_is_missing'"]),
        ("def broken(:", 1, ["app.py", "SyntaxError"]),
        ("raise SystemExit(3)", 1, ["app.py"]),
        ("raise ValueError('mongodb://ada:secret@db/x')", 1, ["mongodb://***@db/x"]),
        ("os.environ['SHOP_THAT_IS_MISSING']", 1, ["KeyError: 'SHOP_THAT_IS_MISSING'"]),
        (connecting, 3, ["app.py:", "no usable MongoDB answered"]),
        (caused, 1, ["app.py", "1 / 0"]),
    ]
    for module, code, sentences in modules:
        command = program_here("worker", "app:worker", more=module)
        printed = "\n".join(command.log)
        assert command.end() == code, printed
        for sentence in sentences:
            assert sentence in printed
        for other in ("secret", "/mongoq/", "os.py"):
            assert other not in printed
        assert code != 3 or len(command.log) == 1


def test_a_module_of_a_package_is_found_and_a_missing_one_named_with_its_neighbours(
    program_here: Run, broker: mongoq.Broker, tmp_path: Path
) -> None:
    (tmp_path / "shop_of_test").mkdir()
    (tmp_path / "shop_of_test" / "__init__.py").touch()
    (tmp_path / "shop_of_test" / "workers.py").write_text("class Shop:\n    from app import make_with\n")
    assert program_here("worker", "shop_of_test.workers:Shop.make_with", "--drain", more=TARGETS).end() == 0
    command = program_here("worker", "shop_of_test.worker:main", more=TARGETS)
    assert command.end() == 2
    assert "has no module 'worker' in it; it has workers" in "\n".join(command.log)


def test_a_server_that_does_not_answer_has_an_exit_code_of_its_own(program_here: Run) -> None:
    unreachable = "mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=50"
    command = program_here("worker", "app:make_with", more=TARGETS, MONGOQ_URI=unreachable)
    assert command.end() == 3
    assert command.log[-1].startswith("mongoq: no usable MongoDB answered at 127.0.0.1:9")


def test_a_stage_that_stops_ends_it_with_its_sentence(program_here: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    command = program_here("worker", "app:make_stopping", more=TARGETS)
    assert command.end() == 1
    assert command.log[-1].startswith("mongoq: stage 'refuse' has stopped: item ")
    assert broker.queue("orders").counts() == mongoq.Counts(ready=1)


def test_options_that_do_not_go_are_refused(program_here: Run) -> None:
    for arguments, sentence in (
        (["--reload", "--drain"], "--reload waits for changes"),
        (["--processes", "0"], "--processes"),
        (["--http", "localhost"], "has no port"),
        (["--http", "localhost:http"], "is no port"),
        (["--http", "localhost:70000"], "is no port"),
        (["--uri", "mongodb://ada:secret@localhost"], "list of processes"),
    ):
        command = program_here("worker", "app:worker", *arguments)
        assert command.end() == 2
        assert command.logged(sentence)
        assert not command.logged("secret")


def test_an_address_in_use_is_an_error(program_here: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = program_here("worker", "app:worker", "--http", f":{port}")
    assert command.end() == 1
    assert command.log[-1].startswith(f"mongoq: this process cannot listen on 127.0.0.1:{port}")


# --- the end -------------------------------------------------------------------------------------

ASYNC = """
import asyncio

async def handle_async(payload):
    say("begin", payload, os.getpid())
    while not os.path.exists("gate"):
        await asyncio.sleep(0.005)
    say("end", payload)

async def make_async(broker):
    worker = mongoq.AsyncWorker(broker, grace=60)
    worker.consumer("orders", lease=1, concurrency=2, prefetch=0)(handle_async)
    return worker

def make_pipeline():
    pipeline = mongoq.Pipeline("flights")
    pipeline.sink("orders", lease=1, concurrency=2, prefetch=0)(handle)
    return pipeline
"""


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("make", signal.SIGTERM),
        ("make_pipeline", signal.SIGINT),
        pytest.param("make_async", signal.SIGTERM, marks=pytest.mark.prove),
    ],
)
def test_a_signal_ends_it_when_its_handlers_have_ended(
    program: Start, broker: mongoq.Broker, gate: Path, kind: str, number: signal.Signals
) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(6))
    command = program("worker", f"app:{kind}", more=ASYNC)
    begun(command, 2)
    command.process.send_signal(number)
    until(lambda: command.logged("stops: a signal came"))
    gate.touch()
    assert command.end() == 0
    assert len(command.said("end")) == len(command.said("begin"))
    assert queue.counts() == mongoq.Counts(ready=6 - len(command.said("end")))
    assert not command.logged("Traceback")


@pytest.mark.parametrize("kind", ["make_pipeline", pytest.param("make_async", marks=pytest.mark.prove)])
def test_a_second_signal_ends_it_at_once(program: Start, broker: mongoq.Broker, kind: str) -> None:
    queue = broker.queue("orders")
    queue.push_many(range(6))
    command = program("worker", f"app:{kind}", more=ASYNC)
    begun(command, 2)
    command.process.send_signal(signal.SIGINT)
    until(lambda: command.logged("stops: a signal came"))
    command.process.send_signal(signal.SIGINT)
    assert command.end() == 0
    assert not command.said("end")
    assert queue.counts() == mongoq.Counts(ready=6)


def test_a_handler_of_the_program_for_the_signal_is_called_as_well(
    program: Start, broker: mongoq.Broker, gate: Path
) -> None:
    """It may stop the worker too, which is not the second stop."""
    broker.queue("orders").push(1)
    more = """
import signal
worker = make(connect())

def stop(*_):
    say("heard")
    worker.stop()

signal.signal(signal.SIGTERM, stop)
"""
    command = program("worker", "app:worker", more=more)
    begun(command, 1)
    command.process.terminate()
    until(lambda: command.said("heard"))
    gate.touch()
    assert command.end() == 0
    assert command.said("end") == ["1"]


@pytest.mark.parametrize("kind", ["make_async", pytest.param("make", marks=pytest.mark.prove)])
def test_a_drain_that_is_interrupted_does_not_end_as_if_the_queues_were_empty(
    program: Start, broker: mongoq.Broker, gate: Path, kind: str
) -> None:
    broker.queue("orders").push_many(range(6))
    command = program("worker", f"app:{kind}", "--drain", more=ASYNC)
    begun(command, 2)
    command.process.send_signal(signal.SIGTERM)
    until(lambda: command.logged("stops: a signal came"))
    gate.touch()
    assert command.end() == 130
    assert command.logged("before its queues were empty")


@pytest.mark.parametrize(
    ("number", "code", "sentence"),
    [
        (signal.SIGTERM, 0, "stops before it has started"),
        pytest.param(signal.SIGINT, 130, "", marks=pytest.mark.prove),
    ],
)
def test_a_signal_while_the_module_loads_ends_it(
    program: Start, number: signal.Signals, code: int, sentence: str
) -> None:
    command = program("worker", "app:worker", more="say('loading'); time.sleep(3600)")
    until(lambda: command.lines == ["loading"])
    command.process.send_signal(number)
    assert command.end() == code
    assert command.logged(sentence) or not sentence
    assert not command.logged("Traceback")


# --- logs and health -----------------------------------------------------------------------------


def test_lines_of_the_log_are_json_with_the_fields_of_mongoq(program_here: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    more = """
import logging

def make_logging(broker):
    worker = mongoq.Worker(broker)

    @worker.consumer("orders", max_retries=0)
    def log(payload):
        logging.getLogger("shop").info("sold \\x1b[31m%s", payload, extra={"mongoq_queue": "orders", "other": 1})
        raise ValueError("no stock")

    return worker
"""
    command = program_here("worker", "app:make_logging", "--drain", "--log-format=json", more=more)
    assert command.end() == 0
    records = [fields_of(line) for line in command.log]
    [sold] = [record for record in records if record["logger"] == "shop"]
    assert sold["message"] == "sold \x1b[31m1"
    assert sold["mongoq_queue"] == "orders"
    assert sold["level"] == "info"
    assert sold["process"] == os.getpid()
    assert sold["time"].endswith("Z")
    assert "other" not in sold
    assert any("ValueError: no stock" in record.get("exception", "") for record in records)


FAILING = """
def refuse(payload):
    raise ValueError(f"no stock for {payload}")

async def refuse_async(payload):
    refuse(payload)

def make_worker(broker):
    worker = mongoq.Worker(broker)
    worker.consumer("orders", max_retries=0)(refuse)
    return worker

async def make_async_worker(broker):
    worker = mongoq.AsyncWorker(broker)
    worker.consumer("orders", max_retries=0)(refuse_async)
    return worker

def make_pipeline():
    pipeline = mongoq.Pipeline("flights", errors="orders.dead")
    pipeline.sink("orders", max_retries=0)(refuse)
    return pipeline
"""


@pytest.mark.parametrize("target", ["make_worker", "make_async_worker", "make_pipeline"])
def test_messages_of_errors_are_left_out_of_the_log_if_wanted(
    program_here: Run, broker: mongoq.Broker, target: str
) -> None:
    for options in ([], ["--log-errors=type"]):
        broker.queue("orders").push("Grace")
        command = program_here("worker", f"app:{target}", "--drain", *options, more=FAILING)
        assert command.end() == 0
        assert command.logged("ValueError")
        assert bool(command.logged("no stock for Grace")) == (not options)


def test_an_error_that_ends_it_is_json_too(program_here: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    for target, code, message in (
        ("app:wroker", 2, "has no 'wroker' in it"),
        ("app:fail", 1, "ValueError: no stock"),
        ("app:make_stopping", 1, "stage 'refuse' has stopped"),
    ):
        command = program_here("worker", target, "--log-format=json", more=TARGETS)
        assert command.end() == code
        records = [fields_of(line) for line in command.log]
        assert message in records[-1]["message"]
        assert records[-1]["level"] == "error"


def test_the_text_of_a_log_has_no_control_characters(program_here: Run) -> None:
    more = "import logging; logging.getLogger('shop').warning('a\\x1b[31mb'); logging.getLogger('shop').info('c')"
    command = program_here("worker", "app:worker", "--log-level=warning", more=more)
    assert command.log[0].endswith("shop: a\\x1b[31mb")
    assert not command.logged("shop: c")


def health_port(command: Program) -> int:
    [line] = until(lambda: command.logged(" are served at "))
    return int(line.rpartition(":")[2])


def ask(command: Program, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{health_port(command)}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.parametrize("kind", ["make_pipeline", pytest.param("make_async", marks=pytest.mark.prove)])
def test_health_is_served(program: Start, broker: mongoq.Broker, gate: Path, kind: str) -> None:
    broker.queue("orders").push(1)
    more = f"""{ASYNC}
import datetime
import mongoq.worker.time_limit

mongoq.worker.time_limit.LONG_RUN = datetime.timedelta(seconds=0.1)
while not os.path.exists("loaded"):
    time.sleep(0.005)
"""
    command = program("worker", f"app:{kind}", "--http", "127.0.0.1:0", more=more)
    assert ask(command, "/healthz")[0] == 200
    assert command.logged("/healthz, /readyz and /metrics are served at http://127.0.0.1:")
    status, body = ask(command, "/wrong")
    assert (status, json.loads(body)) == (404, {"error": "there are /healthz, /readyz and /metrics"})
    status, body = ask(command, "/readyz")
    assert status == 503
    assert b"it has not started" in body
    (gate.parent / "loaded").touch()
    begun(command, 1)
    until(lambda: ask(command, "/readyz")[0] == 200)
    until(lambda: b"for more than" in ask(command, "/readyz")[1])
    command.process.terminate()
    until(lambda: b"the worker stops" in ask(command, "/readyz")[1])
    gate.touch()
    assert command.end() == 0


IN_A_POOL = """
import multiprocessing
pool = multiprocessing.get_context("fork").Pool(1)
say("pool", pool.apply(os.getpid))
"""
IN_A_CHILD = """
if os.fork() == 0:
    say("child", os.getpid())
"""
IN_A_THREAD = """
import threading
threading.Thread(target=lambda: os.path.exists("gate") or time.sleep(3600), name="mine").start()
"""


@pytest.mark.prove
def test_a_module_that_forks_or_has_a_pool_gets_one_worker_that_ends(program: Start, broker: mongoq.Broker) -> None:
    command = program("worker", "app:make", "--processes=2", more=IN_A_POOL + IN_A_CHILD)
    until(lambda: len(command.logged(" starts: ")) == 2 or command.process.poll() is not None)
    workers = set(command.workers())
    command.process.terminate()
    assert command.end() == 0, command.log
    assert {int(line.split("[")[1].split("]")[0]) for line in command.logged(" starts: ")} == workers
    assert len(command.logged("a process that the module has forked comes back from it, and ends")) == 2
    assert not command.logged("Traceback")
    until(lambda: not any(is_alive(int(pid)) for pid in command.said("pool") + command.said("child")))


def test_a_thread_that_keeps_the_process_from_ending_is_named(program: Start) -> None:
    command = program("worker", "app:make", more=IN_A_THREAD)
    until(lambda: command.logged(" starts: "))
    command.process.terminate()
    until(lambda: command.logged("its process waits for threads that the program has started: mine"))
    command.process.terminate()
    assert command.end() == -signal.SIGTERM
