"""No mongod, or one that does not start: one sentence that says what to do, and nothing left running."""

import importlib.util
import os
import sys
import tempfile

import psutil
import pytest

from mongoq.embedded import EmbeddedServer
from mongoq.errors import EmbeddedServerUnavailable


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def saying(path, words):
    """Make a mongod that says some words and ends."""
    return script(path, f"#!/bin/sh\necho '{words}' >&2\nexit 3\n")


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The place of temporary directories; in the end no directory is left in it, and no process."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    before = set(psutil.Process().children())
    yield place
    assert not list(place.iterdir())
    assert set(psutil.Process().children()) <= before


def test_the_mongod_given_comes_first_then_the_one_on_path_then_the_wheel(tmp_path, monkeypatch):
    given, folder, package = saying(tmp_path / "given", "i was given"), tmp_path / "bin", tmp_path / "fiftyone"
    saying(folder / "mongod", "i am on the path")
    saying(package / "db" / "bin" / "mongod", "i am in the wheel")
    for place in (package, package / "db"):
        (place / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for path, mongod, words in (
        (str(folder), given, "i was given"),
        (str(folder), str(given), "i was given"),
        (str(folder), None, "i am on the path"),
        ("", None, "i am in the wheel"),
    ):
        monkeypatch.setenv("PATH", path)
        with pytest.raises(EmbeddedServerUnavailable, match=f"status 3.*{words}"):
            EmbeddedServer(mongod=mongod).start()


def test_without_any_mongod_it_says_what_to_install(monkeypatch):
    find_spec = importlib.util.find_spec  # of the language: a package that is not installed
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "fiftyone" else find_spec(name, *rest)
    )
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmbeddedServerUnavailable) as failure:
        EmbeddedServer().start()
    assert "mongoq-driver[embedded]" in str(failure.value)
    assert "mongod is on PATH" in str(failure.value)


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        (None, {}, "{mongod}"),
        ("not a program", {}, f"another platform.*{os.uname().machine}"),
        ("#!/no/such/interpreter\n", {}, f"another platform.*{os.uname().machine}"),
        ("#!/bin/sh\necho waiting for nothing\nexec sleep 600\n", {"timeout": 0.5}, "timeout=.*waiting for nothing"),
        ("#!/bin/sh\necho '{port}'\necho out of luck >&2\nexit 14\n", {"timeout": 2}, "status 14.*out of luck"),
        ("#!/bin/sh\necho '{\"id\":23016, cut off'\nexit 3\n", {}, "status 3.*cut off"),
        ("#!/bin/sh\necho out of luck >&2\nkill -35 $$\n", {}, r"signal 35\b.*out of luck"),
        ("#!/bin/sh\nexit 48\n", {}, "status 48"),
        ("", {"parameters": {"a\0b": 1}}, "could not be started: embedded null byte"),
    ],
    ids=["missing", "format", "loader", "mute", "dies", "liar", "signal", "silent", "null byte"],
)
def test_a_mongod_that_does_not_start_is_the_proper_error(tmp_path, text, options, problem):
    mongod = tmp_path / "mongod"
    if text is not None:
        line = '{"s":"I","id":23016,"msg":"Waiting for connections","attr":{"port":1}}'
        script(mongod, text.replace("{port}", line))
    server = EmbeddedServer(mongod=mongod, **options)
    with pytest.raises(EmbeddedServerUnavailable, match=problem.replace("{mongod}", str(mongod))):
        server.start()
    assert server.pid is None
    server.stop()


def test_a_path_keeps_the_log_of_a_failed_start_and_can_be_used_again(tmp_path):
    with pytest.raises(EmbeddedServerUnavailable, match="nonsense"):
        EmbeddedServer(tmp_path / "data", parameters={"nonsense": 1}).start()
    assert "nonsense" in (tmp_path / "data" / "mongod.log").read_text()
    with EmbeddedServer(tmp_path / "data") as server:
        # By a server of the same data that knows nothing of the first one's lock, since it was started by hand.
        command = psutil.Process(server.pid).cmdline()
        other = script(tmp_path / "mongod", f'#!/bin/sh\nexec "{command[0]}" --dbpath {tmp_path}/data --port 0\n')
        with pytest.raises(EmbeddedServerUnavailable, match="another mongod uses this directory.*DBPathInUse"):
            EmbeddedServer(mongod=other).start()
    (tmp_path / "data" / "WiredTiger.turtle").write_text("no such thing")
    with pytest.raises(EmbeddedServerUnavailable, match="because it .*take another path; its last words: .*"):
        EmbeddedServer(tmp_path / "data").start()


def test_a_watchdog_that_cannot_run_is_named(tmp_path, monkeypatch):
    python = script(tmp_path / "python", "#!/bin/sh\necho no encodings >&2\nexit 1\n")
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(EmbeddedServerUnavailable, match=rf"{python} could not run the watchdog.*no encodings"):
        EmbeddedServer().start()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    with pytest.raises(EmbeddedServerUnavailable, match=r"could not be started.*nowhere"):
        EmbeddedServer().start()


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(EmbeddedServerUnavailable, match=f"{path} cannot be made"):
            EmbeddedServer(path).start()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(EmbeddedServerUnavailable, match="nowhere"):
        EmbeddedServer().start()
