"""Connection strings with passwords, given to each command: no output, no error and no list of processes shows them."""

from __future__ import annotations

from collections.abc import Iterator

import click
import psutil
import pytest
from bson import ObjectId

import mongoq
from tests.cli.conftest import Run, Start
from tests.waiting import until

SECRET = "hunter2"
SHOWN = (
    f"mongodb://ada:{SECRET}@127.0.0.1:1/",
    f"MONGODB://ada:{SECRET}@127.0.0.1:1/",
    f"mongodb+srv://ada:{SECRET}@nowhere.invalid/",
    f"postgres://ada:{SECRET}@h/app",
    f"ada:{SECRET}@127.0.0.1",
    f"mongodb://ada:x@y/{SECRET}@127.0.0.1:1",
    f"mongodb://:{SECRET}@127.0.0.1:1",
    f"mongodb://127.0.0.1:1/?tlsCertificateKeyFilePassword={SECRET}",
    f"mongodb://127.0.0.1:1/?authMechanismProperties=AWS_SESSION_TOKEN:{SECRET}",
    f"mongodb://127.0.0.1:1/?PROXYPASSWORD={SECRET}",
)
"""Connection strings that no command takes from its command line."""
HIDDEN = (
    f"mongodb://ada:{SECRET}@127.0.0.1:port",
    f"mongodb://ada:{SECRET}@127.0.0.1:1/?serverSelectionTimeoutMS=20",
    f"mongodb://ada:x%40{SECRET}@127.0.0.1:1,127.0.0.1:2/app?serverSelectionTimeoutMS=20&replicaSet=rs",
    f"mongodb://ada:{SECRET}@x@127.0.0.1:1",
    f"mongodb://ada:x/{SECRET}@127.0.0.1:1",
    f"mongodb://ada:{SECRET}%@127.0.0.1:1",
    f"mongodb://ada:{SECRET}@[::1",
    f"mongodb://ada:{SECRET}@127.0.0.1:1/a.b?serverSelectionTimeoutMS=20",
    f"mongodb://ada:{SECRET}@127.0.0.1:1/?authMechanism=none&serverSelectionTimeoutMS=20",
    f"mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=20&authMechanism=MONGODB-AWS&nonsense={SECRET}",
    f"postgres://ada:{SECRET}@h/app",
    f"ada:{SECRET}@127.0.0.1",
    f"mongodb://127.0.0.1:1/?tlsCertificateKeyFilePassword={SECRET}&tlsCertificateKeyFile=/nowhere",
)
"""Connection strings in the environment, with which no command can work."""
VALUES = {"queue": "orders", "queues": "orders", "payload": "1", "id": str(ObjectId()), "role": "worker"}
VALUES |= {"schedule": "hourly", "name": "hourly", "target": "app:worker", "recipe": __file__}


def list_commands(group: click.Group, *path: str) -> Iterator[tuple[list[str], click.Command]]:
    """Yield each command that takes a connection string."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from list_commands(command, *path, name)
        if any(parameter.name == "uri" for parameter in command.params):
            yield [*path, name], command


def complete(path: list[str], command: click.Command) -> list[str]:
    """Return the arguments with which a command runs."""
    needed = [parameter for parameter in command.params if parameter.required]
    options = [word for each in needed if isinstance(each, click.Option) for word in (each.opts[0], "others")]
    values = [VALUES.get(each.name or "", "orders") for each in needed if isinstance(each, click.Argument)]
    return [*path, *values, *options]


def test_no_command_takes_a_password_on_its_command_line(run: Run, command_line: click.Group) -> None:
    commands = list(list_commands(command_line))
    assert {"queues", "push", "worker", "exporter", "dashboard", "dead list"} <= {
        " ".join(path) for path, _ in commands
    }
    for path, command in commands:
        for uri in SHOWN if path in (["queues"], ["worker"], ["role"]) else SHOWN[:1]:
            result = run(*complete(path, command), "--uri", uri)
            assert (result.exit_code, SECRET in result.output) == (2, False), (path, uri, result.output)
            # This command reads its recipe first, which is none here.
            assert path == ["pipeline", "run"] or "MONGOQ_URI" in result.output, (path, uri, result.output)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_output_shows_a_password_of_the_environment(
    run: Run, command_line: click.Group, environment: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    for path, command in list_commands(command_line):
        if path in (["worker"], ["dashboard"]):  # they use it later
            continue
        for uri in HIDDEN if path == ["queues"] else HIDDEN[:1]:
            environment["MONGOQ_URI"] = uri
            result = run(*complete(path, command))
            assert SECRET not in result.output, (path, uri)
            assert path == ["role"] or result.exit_code != 0, (path, uri, result.output)
    assert SECRET not in caplog.text


@pytest.mark.prove
def test_no_process_of_a_worker_shows_the_connection_string(program: Start, uri: str, broker: mongoq.Broker) -> None:
    command = program("worker", "app:worker", "--processes", "2", MONGOQ_URI=f"{uri}&appName={SECRET}")
    until(lambda: len(broker.workers()) == 2 or command.process.poll() is not None)
    own = psutil.Process(command.process.pid)
    lines = [" ".join(process.cmdline()) for process in (own, *own.children(recursive=True))]
    assert len(lines) > 2, lines
    assert [line for line in lines if SECRET in line] == []
    command.process.terminate()
    assert command.end() == 0
    assert not command.logged(SECRET)
