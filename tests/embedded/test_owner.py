"""The end of the owner is the end of the server, however the owner ends; and nothing else is."""

import os
import signal
from pathlib import Path

import psutil
import pytest
from pymongo import MongoClient

from mongoq.embedded import EmbeddedServer
from tests.waiting import until


def test_a_forked_child_does_not_keep_the_server_of_a_killed_owner(owner, nothing_left, is_alive):
    process = owner("""
        import multiprocessing
        server = EmbeddedServer().start()
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        tell(server, child=child.pid)
        sys.stdin.read()
    """)
    assert Path(process.facts["path"]).exists()
    process.process.kill()
    nothing_left(process.facts)
    assert is_alive(process.facts["child"])


def test_an_owner_that_ends_without_stopping_leaves_nothing(owner, is_alive):
    process = owner("server = EmbeddedServer().start(); tell(server)")
    assert process.process.wait() == 0
    assert not is_alive(process.facts["pid"])
    assert not is_alive(process.facts["watchdog"])
    assert not Path(process.facts["path"]).exists()


def test_ctrl_c_reaches_the_owner_and_not_the_server(owner, nothing_left):
    process = owner("""
        with EmbeddedServer() as server:
            try:
                tell(server)
                sys.stdin.read()
            except KeyboardInterrupt:
                pymongo.MongoClient(server.uri).test.items.insert_one({})
                tell(alive=server.pid)
    """)
    os.killpg(process.process.pid, signal.SIGINT)
    assert process.listen()["alive"] == process.facts["pid"]
    assert process.process.wait() == 0
    nothing_left(process.facts)


@pytest.mark.prove
def test_a_killed_owner_with_a_path_leaves_its_data_to_the_next_at_once(owner, nothing_left, tmp_path):
    process = owner(f"""
        server = EmbeddedServer({str(tmp_path)!r}).start()
        pymongo.MongoClient(server.uri).test.items.insert_one({{}})
        tell(server)
        sys.stdin.read()
    """)
    process.process.kill()
    process.process.wait()
    with EmbeddedServer(tmp_path) as server, MongoClient(server.uri) as client:
        assert client.test.items.count_documents({}) == 1
        nothing_left(process.facts, temporary=False)


@pytest.mark.prove
def test_a_forked_child_has_a_server_of_its_own_and_not_that_of_its_parent(owner, nothing_left):
    process = owner("""
        server = EmbeddedServer().start()
        child = os.fork()
        if child == 0:
            with EmbeddedServer() as own:
                tell(own)
            server.stop()
            try:
                server.start()
            except EmbeddedServerUnavailable as error:
                tell(refusal=str(error))
            sys.exit()  # runs what atexit has
        os.waitpid(child, 0)
        pymongo.MongoClient(server.uri).test.items.insert_one({})
        tell(server)
    """)
    nothing_left(process.facts)
    assert f"belongs to process {process.process.pid}" in process.listen()["refusal"]
    process.listen()
    assert process.process.wait() == 0
    nothing_left(process.facts)


@pytest.mark.prove
def test_an_owner_that_becomes_another_program_leaves_nothing(owner, nothing_left, is_alive):
    process = owner("""
        server = EmbeddedServer().start()
        tell(server)
        os.execvp("sleep", ["sleep", "600"])
    """)
    nothing_left(process.facts)
    assert is_alive(process.process.pid)


@pytest.mark.prove
def test_an_owner_killed_in_the_middle_of_a_start_leaves_nothing(owner):
    process = owner("tell(ready=True); server = EmbeddedServer().start(); sys.stdin.read()")
    family = []

    def started():
        family[:] = psutil.Process(process.process.pid).children(recursive=True)
        return len(family) == 2

    until(started)
    directory = Path(family[0].cwd())
    process.seen += family
    process.process.kill()
    until(lambda: not any(each.is_running() for each in family))
    assert not directory.exists()
