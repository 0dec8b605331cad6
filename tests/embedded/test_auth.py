"""A server that demands a password keeps it to itself."""

import psutil
import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from mongoq.embedded import EmbeddedServer, replica
from mongoq.errors import EmbeddedServerUnavailable

USER, PASSWORD = "some:one@home", "pa/ss: wörd?"
MODES = pytest.mark.parametrize("replica_set", ["mongoq", None])


@MODES
def test_only_the_right_password_gets_in(replica_set):
    with EmbeddedServer(auth=(USER, PASSWORD), replica_set=replica_set) as server:
        with MongoClient(server.uri) as client:
            client.test.items.insert_one({})
        where = f"127.0.0.1:{server.port}"
        with MongoClient(where) as stranger, pytest.raises(OperationFailure, match="authentication"):
            stranger.test.items.find_one()
        with (
            MongoClient(where, username=USER, password="wrong") as liar,
            pytest.raises(OperationFailure, match="Authentication failed"),
        ):
            liar.test.items.find_one()


@pytest.mark.prove
@MODES
def test_a_path_keeps_the_user(tmp_path, replica_set):
    for count in (0, 1):
        with (
            EmbeddedServer(tmp_path, auth=(USER, PASSWORD), replica_set=replica_set) as server,
            MongoClient(server.uri) as client,
        ):
            assert client.test.items.count_documents({}) == count
            client.test.items.insert_one({})


@pytest.mark.prove
def test_another_password_for_the_user_of_a_path_is_refused(tmp_path):
    with EmbeddedServer(tmp_path, auth=(USER, PASSWORD)):
        pass
    server = EmbeddedServer(tmp_path, auth=(USER, "another"))
    with pytest.raises(EmbeddedServerUnavailable, match=f"{USER}.*another password") as failure:
        server.start()
    assert PASSWORD not in str(failure.value)
    assert server.pid is None


@pytest.mark.prove
def test_a_crash_before_the_user_was_made_is_repaired_by_the_next_start(tmp_path, monkeypatch):
    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(replica, "_create_user", crash)
        with pytest.raises(KeyboardInterrupt):
            EmbeddedServer(tmp_path, auth=(USER, PASSWORD)).start()
    with EmbeddedServer(tmp_path, auth=(USER, PASSWORD)) as server, MongoClient(server.uri) as client:
        client.test.items.insert_one({})


@MODES
def test_the_password_is_in_the_uri_and_nowhere_else(replica_set):
    server = EmbeddedServer(
        auth=(USER, "swordfish"),
        replica_set=replica_set,
        parameters={"logComponentVerbosity": "{verbosity: 2}"},
    )
    with server:
        assert "swordfish" in server.uri
        assert "swordfish" not in repr(server)
        assert "swordfish" not in repr(vars(server))
        mongod = psutil.Process(server.pid)
        for process in (mongod, mongod.parent()):
            assert "swordfish" not in " ".join(process.cmdline())
            assert "swordfish" not in " ".join(process.environ().values())
        files = [path for path in server.path.rglob("*") if path.is_file()]
        assert "createUser" in (server.path / "mongod.log").read_text()
        assert not [path for path in files if b"swordfish" in path.read_bytes()]
        assert server.path.joinpath("mongod.key").stat().st_mode & 0o777 == 0o600
