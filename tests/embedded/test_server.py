"""The embedded server in the hands of its owner: what it is, what it keeps, and what it leaves."""

import os
import signal
import socket
import stat
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect

from mongoq.embedded import EmbeddedServer, replica
from mongoq.errors import ArgumentInvalid, EmbeddedServerUnavailable


def write_and_count(server):
    with MongoClient(server.uri) as client:
        client.test.items.insert_one({})
        return client.test.items.count_documents({})


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def stranger_at(port):
    """Something else that has the port now: it hangs up on whoever connects."""
    with socket.create_server(("127.0.0.1", port)) as listener:

        def hang_up():
            with suppress(OSError):
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def watchdog_of(server):
    return psutil.Process(server.pid).parent()


def test_it_is_a_writable_primary_with_transactions_and_change_streams(record_property):
    started = time.perf_counter()
    with EmbeddedServer() as server:
        record_property("start_seconds", round(time.perf_counter() - started, 3))
        with MongoClient(server.uri) as client:
            hello = client.admin.command("hello")
            assert hello["isWritablePrimary"]
            assert hello["setName"] == "mongoq"
            assert hello["me"] == f"127.0.0.1:{server.port}"
            items = client.test.items
            with items.watch() as stream:
                with client.start_session() as session, session.start_transaction():
                    items.insert_one({"_id": 1}, session=session)
                assert stream.next()["documentKey"] == {"_id": 1}


def test_a_client_finds_the_primary_again_after_a_step_down():
    with (
        EmbeddedServer(parameters={"enableTestCommands": 1}) as server,
        MongoClient(server.uri) as client,
    ):
        client.test.items.insert_one({})
        client.admin.command("replSetStepDown", 1, force=True)
        client.test.items.insert_one({})
        assert client.test.items.count_documents({}) == 2


def test_without_a_replica_set_it_is_standalone():
    with EmbeddedServer(replica_set=None) as server:
        assert "replicaSet" not in server.uri
        with MongoClient(server.uri) as client:
            assert "setName" not in client.admin.command("hello")
        assert write_and_count(server) == 1


def test_nothing_is_left_of_a_temporary_server():
    with EmbeddedServer() as server:
        mongod, watchdog, path, port = (
            psutil.Process(server.pid),
            watchdog_of(server),
            server.path,
            server.port,
        )
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert listens(port)
    assert not mongod.is_running()
    assert not watchdog.is_running()
    assert not path.exists()
    assert not listens(port)
    assert server.pid is None


def test_a_path_keeps_the_data_over_restarts_and_ports(tmp_path):
    path = tmp_path / "deep" / "data"
    with EmbeddedServer(path) as server:
        assert write_and_count(server) == 1
        first = server.port
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with stranger_at(first), EmbeddedServer(str(path)) as server:
        assert server.port != first
        assert server.path == path
        assert write_and_count(server) == 2
    server.start()
    try:
        assert write_and_count(server) == 3
    finally:
        server.stop()
    assert (path / "mongod.log.1").exists()


def test_a_connection_that_mongod_drops_during_the_start_does_not_fail_it(monkeypatch):
    form, calls = replica._form, []

    def drop_once(*arguments):
        form(*arguments)
        calls.append(arguments)
        if len(calls) == 1:
            raise AutoReconnect("connection closed")

    monkeypatch.setattr(replica, "_form", drop_once)
    with EmbeddedServer() as server:
        assert write_and_count(server) == 1
    assert len(calls) == 2


@pytest.mark.prove
def test_data_of_a_standalone_server_becomes_a_replica_set_and_back(tmp_path):
    for replica_set in (None, "mongoq", None):
        with EmbeddedServer(tmp_path, replica_set=replica_set) as server:
            count = write_and_count(server)
    assert count == 3


@pytest.mark.prove
def test_data_made_under_another_set_name_is_refused_by_name(tmp_path):
    with EmbeddedServer(tmp_path, replica_set="first"):
        pass
    second = EmbeddedServer(tmp_path, replica_set="second")
    with pytest.raises(EmbeddedServerUnavailable, match="replica_set='first'"):
        second.start()
    assert second.pid is None


def test_it_is_bound_to_loopback_only_and_keeps_its_files_to_itself():
    with EmbeddedServer() as server:
        mongod = psutil.Process(server.pid)
        listening = [c.laddr for c in mongod.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert [tuple(address) for address in listening] == [("127.0.0.1", server.port)]
        assert not mongod.net_connections("unix")
        assert all(Path(file.path).is_relative_to(server.path) for file in mongod.open_files())
        assert Path(mongod.cwd()) == server.path
        assert not (server.path / "diagnostic.data").exists()


def test_zlib_is_not_offered():
    with EmbeddedServer() as server, MongoClient(server.uri) as client:
        hello = client.admin.command({"hello": 1, "compression": ["zlib", "zstd", "snappy"]})
        assert set(hello["compression"]) == {"zstd", "snappy"}


def test_options_reach_the_server():
    options = {"cache_mb": 300, "history_window_seconds": 7, "replica_set": "other"}
    parameters = {"enableTestCommands": 1, "ttlMonitorSleepSecs": "5", "ttlMonitorEnabled": False}
    with (
        EmbeddedServer(**options, parameters=parameters, timeout=timedelta(seconds=50)) as server,
        MongoClient(server.uri) as client,
    ):
        admin = client.admin
        assert (
            admin.command({"getParameter": 1, "minSnapshotHistoryWindowInSeconds": 1})[
                "minSnapshotHistoryWindowInSeconds"
            ]
            == 7
        )
        assert admin.command({"getParameter": 1, "ttlMonitorSleepSecs": 1})["ttlMonitorSleepSecs"] == 5
        assert admin.command({"getParameter": 1, "ttlMonitorEnabled": 1})["ttlMonitorEnabled"] is False
        cache = admin.command("serverStatus")["wiredTiger"]["cache"]["maximum bytes configured"]
        assert cache == 300 * 1024 * 1024
        assert admin.command("hello")["setName"] == "other"
        admin.command(
            {
                "configureFailPoint": "failCommand",
                "mode": {"times": 1},
                "data": {"failCommands": ["ping"], "closeConnection": True},
            }
        )
        with pytest.raises(AutoReconnect):
            admin.command("ping")


def test_by_default_deleted_entries_are_not_kept():
    with EmbeddedServer() as server, MongoClient(server.uri) as client:
        name = "minSnapshotHistoryWindowInSeconds"
        assert client.admin.command({"getParameter": 1, name: 1})[name] == 0


@pytest.mark.parametrize(
    "option",
    [
        {"cache_mb": 255},
        {"history_window_seconds": -1},
        {"replica_set": ""},
        {"auth": ("user", "")},
        {"timeout": 0},
        {"timeout": float("nan")},
    ],
    ids=str,
)
def test_an_option_that_no_server_takes_is_refused_by_name(option):
    with pytest.raises(ArgumentInvalid, match=next(iter(option))):
        EmbeddedServer(**option)


def test_three_at_once():
    with EmbeddedServer() as a, EmbeddedServer() as b, EmbeddedServer() as c:
        servers = [a, b, c]
        assert len({server.port for server in servers}) == 3
        assert len({server.path for server in servers}) == 3
        assert [write_and_count(server) for server in servers] == [1, 1, 1]
        b.stop()
        assert [write_and_count(server) for server in (a, c)] == [2, 2]


@pytest.mark.prove
def test_several_processes_at_once(owner):
    body = "server = EmbeddedServer().start(); tell(server); sys.stdin.read()"
    facts = [owner(body).facts for _ in range(2)]
    assert facts[0]["port"] != facts[1]["port"]
    for each in facts:
        with MongoClient(each["uri"]) as client:
            assert client.test.items.count_documents({}) == 0


@pytest.mark.prove
def test_a_second_server_on_the_same_path_is_refused(tmp_path, owner):
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with EmbeddedServer(tmp_path / "data") as server:
        for path in (tmp_path / "data", tmp_path / "link"):
            with pytest.raises(EmbeddedServerUnavailable, match=f"in use .* process {os.getpid()}"):
                EmbeddedServer(path).start()
        second = owner(f"""
            try:
                EmbeddedServer({str(tmp_path / "data")!r}).start()
            except EmbeddedServerUnavailable as error:
                tell(error=str(error))
        """)
        assert f"in use by the embedded server of process {os.getpid()}" in second.facts["error"]
        assert write_and_count(server) == 1
    with EmbeddedServer(tmp_path / "data") as server:
        assert write_and_count(server) == 2


@pytest.mark.prove
def test_a_mongod_of_somebody_else_on_the_path_is_named_as_the_reason(tmp_path, owner):
    with EmbeddedServer(tmp_path):
        (tmp_path / "mongoq.lock").unlink()
        second = owner(f"""
            try:
                EmbeddedServer({str(tmp_path)!r}, timeout=2).start()
            except EmbeddedServerUnavailable as error:
                tell(error=str(error))
        """)
    assert "another mongod uses this directory" in second.facts["error"]


def test_starting_and_stopping_twice_does_no_harm():
    server = EmbeddedServer()
    server.stop()
    assert server.start() is server
    pid = server.pid
    assert server.start().pid == pid
    server.stop()
    server.stop()
    assert not psutil.pid_exists(pid)
    server.start()
    assert server.pid != pid
    server.stop()


def test_what_needs_a_running_server_says_so(tmp_path):
    server = EmbeddedServer()
    for name in ("uri", "port", "path"):
        with pytest.raises(EmbeddedServerUnavailable, match="call start"):
            getattr(server, name)
    assert server.pid is None
    assert EmbeddedServer(tmp_path).path == tmp_path


def test_its_repr_tells_the_state(tmp_path, eventually):
    server = EmbeddedServer(tmp_path)
    assert repr(server) == f"<EmbeddedServer stopped path={str(tmp_path)!r}>"
    with server:
        assert f"port={server.port} replica_set='mongoq' pid={server.pid}" in repr(server)
        os.kill(server.pid, signal.SIGKILL)
        eventually(lambda: "crashed" in repr(server))
    assert repr(EmbeddedServer()) == "<EmbeddedServer stopped temporary>"


@pytest.mark.prove
@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "not stopped"])
def test_a_crashed_server_starts_again_on_its_path(tmp_path, eventually, stops):
    server = EmbeddedServer(tmp_path).start()
    try:
        assert write_and_count(server) == 1
        os.kill(server.pid, signal.SIGKILL)
        eventually(lambda: server.pid is None)
        if stops:
            server.stop()
        server.start()
        assert write_and_count(server) == 2
    finally:
        server.stop()


def test_a_crashed_temporary_server_leaves_nothing_and_starts_empty(eventually):
    server = EmbeddedServer().start()
    try:
        path, watchdog = server.path, watchdog_of(server)
        write_and_count(server)
        os.kill(server.pid, signal.SIGKILL)
        eventually(lambda: server.pid is None)
        assert path.exists()  # the log in it tells why
        server.stop()
        assert not path.exists()
        assert not watchdog.is_running()
        server.start()
        assert write_and_count(server) == 1
    finally:
        server.stop()


@pytest.mark.prove
@pytest.mark.parametrize("has_path", [True, False], ids=["path", "temporary"])
def test_without_its_watchdog_it_runs_on_and_still_stops(tmp_path, is_alive, has_path):
    server = EmbeddedServer(tmp_path if has_path else None).start()
    pid, path, watchdog = server.pid, server.path, watchdog_of(server)
    watchdog.kill()
    assert write_and_count(server) == 1
    server.stop()
    assert not is_alive(pid)
    assert not watchdog.is_running()
    assert path.exists() is has_path


def test_a_watchdog_that_is_asked_to_end_takes_the_server_along(eventually):
    with EmbeddedServer() as server:
        watchdog = watchdog_of(server)
        watchdog.terminate()
        eventually(lambda: server.pid is None)
        eventually(lambda: not server.path.exists())


@pytest.mark.prove
def test_the_thread_that_started_it_may_end(eventually):
    server = EmbeddedServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        pid, until = server.pid, time.monotonic() + 1.5  # longer than the watchdog's look at its parent
        eventually(lambda: write_and_count(server) and time.monotonic() > until)
        assert server.pid == pid
    finally:
        server.stop()


def test_many_threads_may_start_and_stop_one_server():
    server = EmbeddedServer()
    threads = [threading.Thread(target=server.start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert write_and_count(server) == 1
    threads = [threading.Thread(target=server.stop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.pid is None
