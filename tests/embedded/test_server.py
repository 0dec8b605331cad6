"""The embedded server in the hands of its owner: what it is, what it keeps, and what it leaves."""

import os
import signal
import stat
import threading
import time
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect

from mongoq.embedded import EmbeddedServer
from mongoq.errors import ArgumentInvalid, EmbeddedServerUnavailable
from tests.waiting import until


def write_and_count(server):
    with MongoClient(server.uri) as client:
        client.test.items.insert_one({})
        return client.test.items.count_documents({})


def watchdog_of(server):
    return psutil.Process(server.pid).parent()


def test_it_is_a_private_writable_primary_with_change_streams_of_which_nothing_is_left():
    server = EmbeddedServer()
    server.stop()  # does no harm
    for name in ("uri", "port", "path"):
        with pytest.raises(EmbeddedServerUnavailable, match="call start"):
            getattr(server, name)
    assert (server.pid, repr(server)) == (None, "<EmbeddedServer stopped temporary>")
    with server, MongoClient(server.uri) as client:
        assert f"port={server.port} replica_set='mongoq' pid={server.pid}" in repr(server)
        hello = client.admin.command("hello")
        assert (hello["isWritablePrimary"], hello["setName"]) == (True, "mongoq")
        assert hello["me"] == f"127.0.0.1:{server.port}"
        items = client.test.items
        with items.watch() as stream:
            with client.start_session() as session, session.start_transaction():
                items.insert_one({"_id": 1}, session=session)
            assert stream.next()["documentKey"] == {"_id": 1}
        mongod, watchdog, path = psutil.Process(server.pid), watchdog_of(server), server.path
        assert server.start().pid == mongod.pid
        listening = [c.laddr for c in mongod.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert [tuple(address) for address in listening] == [("127.0.0.1", server.port)]
        assert not mongod.net_connections("unix")
        assert all(Path(file.path).is_relative_to(path) for file in mongod.open_files())
        assert Path(mongod.cwd()) == path
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE((path / "mongod.log").stat().st_mode) == 0o600
    assert not mongod.is_running()
    assert not watchdog.is_running()
    assert not path.exists()
    assert server.pid is None


def test_a_path_keeps_the_data_over_restarts_and_crashes_and_is_for_one_server(tmp_path):
    path = tmp_path / "deep" / "data"
    server = EmbeddedServer(str(path))
    assert (server.path, repr(server)) == (path, f"<EmbeddedServer stopped path={str(path)!r}>")
    with server:
        assert write_and_count(server) == 1
        assert stat.S_IMODE((path / "mongoq.lock").stat().st_mode) == 0o600
        (tmp_path / "link").symlink_to(path)
        for same in (path, tmp_path / "link"):
            with pytest.raises(EmbeddedServerUnavailable, match=f"in use .* process {os.getpid()}"):
                EmbeddedServer(same).start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with server:
        assert write_and_count(server) == 2
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: "crashed" in repr(server))
        server.start()
        assert write_and_count(server) == 3
    assert (path / "mongod.log.1").exists()


def test_a_crashed_temporary_server_leaves_nothing_and_starts_empty():
    with EmbeddedServer() as server:
        path, watchdog = server.path, watchdog_of(server)
        write_and_count(server)
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: server.pid is None)
        assert path.exists()  # the log in it tells why
        server.stop()
        assert not path.exists()
        assert not watchdog.is_running()
        server.start()
        assert write_and_count(server) == 1


def test_options_reach_the_server_and_a_client_finds_it_again_after_a_step_down():
    options = {"cache_mb": 300, "history_window_seconds": 7, "replica_set": "other"}
    parameters = {"enableTestCommands": 1, "ttlMonitorSleepSecs": "5", "ttlMonitorEnabled": False}
    with (
        EmbeddedServer(**options, parameters=parameters, timeout=timedelta(seconds=50)) as server,
        MongoClient(server.uri) as client,
    ):
        admin = client.admin
        expected = {"minSnapshotHistoryWindowInSeconds": 7, "ttlMonitorSleepSecs": 5, "ttlMonitorEnabled": False}
        for name, value in expected.items():
            assert admin.command({"getParameter": 1, name: 1})[name] == value
        cache = admin.command("serverStatus")["wiredTiger"]["cache"]["maximum bytes configured"]
        assert cache == 300 * 1024 * 1024
        assert admin.command("hello")["setName"] == "other"
        failing = {"failCommands": ["ping"], "closeConnection": True}
        admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=failing)
        with pytest.raises(AutoReconnect):
            admin.command("ping")
        admin.command("replSetStepDown", 1, force=True)
        client.test.items.insert_one({})
        assert client.test.items.count_documents({}) == 1


def test_an_option_that_no_server_takes_is_refused_by_name():
    for option in (
        {"cache_mb": 255},
        {"history_window_seconds": -1},
        {"replica_set": ""},
        {"auth": ("user", "")},
        {"timeout": 0},
        {"timeout": float("nan")},
    ):
        with pytest.raises(ArgumentInvalid, match=next(iter(option))):
            EmbeddedServer(**option)


def test_a_watchdog_that_is_asked_to_end_takes_its_own_server_along():
    with EmbeddedServer() as server, EmbeddedServer(replica_set=None) as other:
        assert (server.port != other.port, server.path != other.path) == (True, True)
        watchdog_of(server).terminate()
        until(lambda: server.pid is None)
        until(lambda: not server.path.exists())
        assert "replicaSet" not in other.uri
        assert write_and_count(other) == 1


def test_many_threads_may_start_and_stop_one_server():
    server = EmbeddedServer()
    for act in (server.start, server.stop):
        threads = [threading.Thread(target=act) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if act == server.start:
            assert write_and_count(server) == 1
    assert server.pid is None


@pytest.mark.prove
def test_data_of_a_standalone_server_becomes_a_replica_set_of_one_name_and_back(tmp_path):
    for replica_set in (None, "first", None):
        with EmbeddedServer(tmp_path, replica_set=replica_set) as server, MongoClient(server.uri) as client:
            assert client.admin.command("hello").get("setName") == replica_set
            count = write_and_count(server)
    assert count == 3
    second = EmbeddedServer(tmp_path, replica_set="second")
    with pytest.raises(EmbeddedServerUnavailable, match="replica_set='first'"):
        second.start()
    assert second.pid is None


@pytest.mark.prove
def test_without_its_watchdog_it_runs_on_and_still_stops(is_alive):
    server = EmbeddedServer().start()
    pid, path, watchdog = server.pid, server.path, watchdog_of(server)
    watchdog.kill()
    assert write_and_count(server) == 1
    server.stop()
    assert not is_alive(pid)
    assert not watchdog.is_running()
    assert not path.exists()


@pytest.mark.prove
def test_the_thread_that_started_it_may_end():
    server = EmbeddedServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with server:
        pid, end = server.pid, time.monotonic() + 1.5  # longer than the watchdog's look at its parent
        until(lambda: write_and_count(server) and time.monotonic() > end)
        assert server.pid == pid
