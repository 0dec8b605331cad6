"""No mongod, or one that does not start: one sentence that says what to do, and nothing left running."""

import importlib.util
import os
import shutil
import signal
import stat
import sys
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path

import psutil
import pytest

from mongoq.embedded import EmbeddedServer
from mongoq.embedded.binary import explain, find_mongod
from mongoq.errors import EmbeddedServerUnavailable

MONGOD = Path("/opt/mongod")


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def no_children_left():
    before = psutil.Process().children()
    yield
    assert psutil.Process().children() == before


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The place of temporary directories, to see whether any is left."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def no_wheel(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "fiftyone" else find_spec(name, *rest),
    )


def test_the_mongod_given_comes_first(tmp_path, monkeypatch):
    mongod = script(tmp_path / "given", "")
    folder = tmp_path / "bin"
    folder.mkdir()
    script(folder / "mongod", "")
    monkeypatch.setenv("PATH", str(folder))
    assert find_mongod(mongod) == mongod
    assert find_mongod(str(mongod)) == mongod


def test_the_one_on_path_comes_before_the_wheel(tmp_path, monkeypatch):
    on_path = script(tmp_path / "mongod", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_mongod() == on_path


def test_the_wheel_comes_last_and_its_package_is_not_run(tmp_path, monkeypatch):
    package = tmp_path / "fiftyone"
    (package / "db" / "bin").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "db" / "__init__.py").write_text("raise RuntimeError('imported')")
    in_wheel = script(package / "db" / "bin" / "mongod", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_mongod() == in_wheel


def test_a_wheel_without_an_executable_does_not_count(tmp_path, monkeypatch):
    spec = ModuleSpec("fiftyone", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmbeddedServerUnavailable):
        find_mongod()


def test_without_any_mongod_it_says_what_to_install(monkeypatch, no_wheel, temporary):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmbeddedServerUnavailable) as failure:
        EmbeddedServer().start()
    assert "mongoq-driver[embedded]" in str(failure.value)
    assert "mongod is on PATH" in str(failure.value)
    assert not list(temporary.iterdir())


def test_a_mongod_given_that_is_not_there_is_named(tmp_path):
    with pytest.raises(EmbeddedServerUnavailable, match=str(tmp_path / "nowhere")):
        EmbeddedServer(mongod=tmp_path / "nowhere").start()


def test_the_words_of_a_broken_mongod_are_quoted(tmp_path, temporary):
    broken = script(tmp_path / "mongod", "#!/bin/sh\necho 'the moon is in the wrong house' >&2\nexit 3\n")
    server = EmbeddedServer(mongod=broken)
    with pytest.raises(EmbeddedServerUnavailable, match=r"status 3.*the moon is in the wrong house"):
        server.start()
    assert server.pid is None
    assert not list(temporary.iterdir())


def test_a_path_keeps_the_log_of_a_failed_start(tmp_path):
    with pytest.raises(EmbeddedServerUnavailable, match="nonsense"):
        EmbeddedServer(tmp_path / "data", parameters={"nonsense": 1}).start()
    assert "nonsense" in (tmp_path / "data" / "mongod.log").read_text()
    with EmbeddedServer(tmp_path / "data") as server:
        assert server.pid is not None


@pytest.mark.parametrize("content", ["not a program", "#!/no/such/interpreter\n"], ids=["format", "loader"])
def test_a_mongod_for_another_platform_is_recognised(tmp_path, content):
    foreign = script(tmp_path / "mongod", content)
    with pytest.raises(EmbeddedServerUnavailable, match=f"another platform.*{os.uname().machine}"):
        EmbeddedServer(mongod=foreign).start()


def test_a_mongod_that_never_listens_is_given_up_at_the_timeout(tmp_path, temporary):
    mute = script(tmp_path / "mongod", "#!/bin/sh\necho waiting for nothing\nexec sleep 600\n")
    with pytest.raises(EmbeddedServerUnavailable, match=r"timeout=.*waiting for nothing"):
        EmbeddedServer(mongod=mute, timeout=0.5).start()
    assert not list(temporary.iterdir())


def test_a_mongod_that_dies_once_it_listens_is_quoted(tmp_path, temporary):
    line = '{"s":"I","id":23016,"msg":"Waiting for connections","attr":{"port":1}}'
    dying = script(tmp_path / "mongod", f"#!/bin/sh\necho '{line}'\necho out of luck >&2\nexit 14\n")
    with pytest.raises(EmbeddedServerUnavailable, match=r"status 14.*out of luck"):
        EmbeddedServer(mongod=dying, timeout=2).start()
    assert not list(temporary.iterdir())


def test_a_watchdog_that_cannot_run_is_named(tmp_path, temporary, monkeypatch):
    python = script(tmp_path / "python", "#!/bin/sh\necho no encodings >&2\nexit 1\n")
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(EmbeddedServerUnavailable, match=rf"{python} could not run the watchdog.*no encodings"):
        EmbeddedServer().start()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    with pytest.raises(EmbeddedServerUnavailable, match=r"could not be started.*nowhere"):
        EmbeddedServer().start()
    assert not list(temporary.iterdir())


def test_an_interrupted_start_leaves_nothing(tmp_path, temporary, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("mongoq.embedded.server.prepare", interrupt)
    server = EmbeddedServer()
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert server.pid is None
    assert not list(temporary.iterdir())


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(EmbeddedServerUnavailable, match=f"{path} cannot be made"):
            EmbeddedServer(path).start()


def test_a_place_for_temporary_directories_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(EmbeddedServerUnavailable, match="nowhere"):
        EmbeddedServer().start()


@pytest.mark.parametrize("words", ["", "out of luck"])
@pytest.mark.parametrize("status", [1, 2, 14, 48, 62, 100, 255])
def test_a_mongod_that_ends_with_any_status_is_the_proper_error(tmp_path, temporary, status, words):
    """Twice, since what is left of the first start may be in the way of the second."""
    dying = script(tmp_path / "mongod", f"#!/bin/sh\necho '{words}' >&2\nexit {status}\n")
    for server in (EmbeddedServer(mongod=dying), EmbeddedServer(tmp_path / "kept", mongod=dying, timeout=1)):
        for _ in range(2):
            with pytest.raises(EmbeddedServerUnavailable, match=f"status {status}|another mongod uses") as failure:
                server.start()
            assert words in str(failure.value)
            assert server.pid is None
            server.stop()
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("number", [35, int(signal.SIGABRT), int(signal.SIGSEGV)])
def test_a_mongod_that_is_ended_by_any_signal_is_the_proper_error(tmp_path, number):
    dying = script(tmp_path / "mongod", f"#!/bin/sh\necho out of luck >&2\nkill -{number} $$\n")
    with pytest.raises(EmbeddedServerUnavailable, match=rf"signal {number}\b.*out of luck"):
        EmbeddedServer(mongod=dying).start()


def test_a_line_that_only_looks_like_that_of_the_port_is_quoted(tmp_path):
    lines = """echo '{"id":23016, cut off'; echo '{"id":23016,"attr":{}}'; echo '{"id":23016,"attr":{"port":"x"}}'"""
    liar = script(tmp_path / "mongod", f"#!/bin/sh\n{lines}\nexit 3\n")
    with pytest.raises(EmbeddedServerUnavailable, match=r"status 3.*cut off"):
        EmbeddedServer(mongod=liar).start()


@pytest.mark.parametrize("name", ["WiredTiger.turtle", "storage.bson", "mongod.lock"])
def test_files_that_mongod_cannot_use_are_reported(tmp_path, name):
    if name == "mongod.lock":
        (tmp_path / name).mkdir()
    else:
        with EmbeddedServer(tmp_path):
            pass
        (tmp_path / name).write_text("no such thing")
    with pytest.raises(EmbeddedServerUnavailable, match="because it .*take another path; its last words: .*"):
        EmbeddedServer(tmp_path).start()


def test_a_directory_that_another_mongod_holds_is_reported(tmp_path):
    """By a server of the same data that knows nothing of the first one's lock, since it was started by hand."""
    with EmbeddedServer(tmp_path / "data") as server:
        command = psutil.Process(server.pid).cmdline()
        dying = script(tmp_path / "mongod", f'#!/bin/sh\nexec "{command[0]}" --dbpath {tmp_path}/data --port 0\n')
        with pytest.raises(EmbeddedServerUnavailable, match="another mongod uses this directory.*DBPathInUse"):
            EmbeddedServer(mongod=dying).start()


@pytest.mark.parametrize("options", [{"path": "a\0b"}, {"parameters": {"a\0b": 1}}], ids=["path", "parameter"])
def test_what_cannot_be_a_path_or_an_argument_is_reported(options):
    with pytest.raises(EmbeddedServerUnavailable, match="could not be started: embedded null byte"):
        EmbeddedServer(**options).start()


@pytest.mark.parametrize(
    "failure, output, advice",
    [
        (127, "mongod: error while loading shared libraries: libcurl.so.4: cannot open", "libcurl4"),
        (127, "mongod: error while loading shared libraries: libcrypto.so.3: cannot open", "OpenSSL 3"),
        (127, "mongod: error while loading shared libraries: libssl.so.1.1: cannot open", "OpenSSL 1.1"),
        (
            127,
            "mongod: error while loading shared libraries: libodd.so.7: cannot open",
            "install libodd.so.7",
        ),
        (1, "mongod: /lib/libc.so.6: version `GLIBC_2.38' not found", "GLIBC_2.38"),
        (-signal.SIGILL, "", "AVX"),
        (-signal.SIGKILL, "", "SIGKILL"),
        (100, "", "another mongod uses this directory"),
        (62, "", "another version of MongoDB"),
        (100, "Attempted to create a lock file on a read-only directory", "owner, permissions and free space"),
        (48, "", "start it again"),
        (-35, "", "signal 35"),
        (PermissionError(13, "Permission denied"), "", "Permission denied"),
    ],
)
def test_a_failure_is_explained(failure, output, advice):
    sentence = explain(MONGOD, failure, output)
    assert sentence.startswith(str(MONGOD))
    assert advice in sentence
    assert sentence.endswith(output)


def test_the_missing_library_of_a_real_program_is_recognised(tmp_path):
    """The text of the system's own loader, by way of a mongod whose libcurl is no library."""
    library = tmp_path / "libcurl.so.4"
    library.write_text("")
    wrapper = script(
        tmp_path / "mongod",
        f'#!/bin/sh\nLD_LIBRARY_PATH={tmp_path} exec "{find_mongod()}" "$@"\n',
    )
    with pytest.raises(EmbeddedServerUnavailable, match=r"install libcurl 4 .*apt-get install libcurl4"):
        EmbeddedServer(mongod=wrapper).start()


def test_log_and_lock_are_private(tmp_path):
    with EmbeddedServer(tmp_path) as server:
        for name in ("mongod.log", "mongoq.lock"):
            assert stat.S_IMODE((server.path / name).stat().st_mode) == 0o600


def test_the_wheel_that_is_installed_here_is_found(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert find_mongod().parts[-4:] == ("fiftyone", "db", "bin", "mongod")
    assert "fiftyone" not in sys.modules
