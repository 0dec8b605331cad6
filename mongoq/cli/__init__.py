"""Command line ``mongoq``: starts workers, shows what is in the queues, and repairs it.

Start reading in ``main``, which lists the commands; each command is one function in the module that is named there.
``inspect`` has the commands that read, ``change`` those that write, ``processes`` the ones that keep running, and
``checks`` the ones that check a server; ``base`` has what they share.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper


def run() -> None:
    """Run the command line with the arguments of this process, and exit with the code of the command."""
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError:
        sys.exit("the command line needs the extra 'cli': pip install 'mongoq-driver[cli]'")
    from mongoq.cli.main import main

    # A standard stream may be closed, as by ``<&-`` of a shell; Python has none then. A file or a connection that is
    # opened later would get its number.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - it stays open
    for stream in (sys.stdout, sys.stderr):
        # A letter that the terminal's encoding lacks is printed by its code, and ends no command.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    main()
