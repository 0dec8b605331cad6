"""A server that demands a password keeps it to itself."""

import psutil
import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from mongoq.embedded import EmbeddedServer
from mongoq.errors import EmbeddedServerUnavailable

USER, PASSWORD = "some:one@home", "pa/ss: wörd?"


@pytest.mark.parametrize("replica_set", ["mongoq", None])
def test_only_the_right_password_gets_in_and_it_is_in_the_uri_and_nowhere_else(replica_set):
    server = EmbeddedServer(
        auth=(USER, "sword/fish"),
        replica_set=replica_set,
        parameters={"logComponentVerbosity": "{verbosity: 2}"},
    )
    with server:
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
        assert "fish" in server.uri
        assert "fish" not in repr(server) + repr(vars(server))
        mongod = psutil.Process(server.pid)
        for process in (mongod, mongod.parent()):
            assert "fish" not in " ".join([*process.cmdline(), *process.environ().values()])
        assert "createUser" in (server.path / "mongod.log").read_text()
        assert not [path for path in server.path.rglob("*") if path.is_file() and b"sword/fish" in path.read_bytes()]
        assert server.path.joinpath("mongod.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.prove
def test_a_path_keeps_the_user_and_refuses_another_password(tmp_path):
    for count in (0, 1):
        with EmbeddedServer(tmp_path, auth=(USER, PASSWORD)) as server, MongoClient(server.uri) as client:
            assert client.test.items.count_documents({}) == count
            client.test.items.insert_one({})
    server = EmbeddedServer(tmp_path, auth=(USER, "another"))
    with pytest.raises(EmbeddedServerUnavailable, match=f"{USER}.*another password") as failure:
        server.start()
    assert PASSWORD not in str(failure.value)
    assert server.pid is None
