"""Watcher of source files: finds out by their times whether one has changed."""

from __future__ import annotations

import os
from pathlib import Path

IGNORED_FOLDERS = {"__pycache__", "node_modules", "site-packages"}
VENV_FILE = "pyvenv.cfg"
"""File at the top of a virtual environment, whatever its folder is called."""


class FileWatcher:
    """Compares the ``.py`` files of a folder with what they were at the last look.

    It reads the times of the files, since notifications of the system would need a package for each system.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = self._scan()

    def find_changes(self) -> list[str]:
        """Return the files that were written, added or removed since the last call, as paths below the folder."""
        before, self._files = self._files, self._scan()
        changed = {path for path, state in before.items() ^ self._files.items()}
        return sorted(os.path.relpath(path, self._folder) for path in changed)

    def _scan(self) -> dict[str, tuple[int, int]]:
        """Return time and size of each file; a file that is replaced may be missing for a moment."""
        files: dict[str, tuple[int, int]] = {}
        for folder, below, names in os.walk(self._folder):
            if VENV_FILE in names:
                below.clear()
                continue
            below[:] = [name for name in below if name not in IGNORED_FOLDERS and not name.startswith(".")]
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)  # noqa: PTH118 - a Path for each file takes most of the time
                    try:
                        state = os.stat(path)  # noqa: PTH116
                    except OSError:
                        continue
                    files[path] = state.st_mtime_ns, state.st_size
        return files
