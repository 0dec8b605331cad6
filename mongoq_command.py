"""Script ``mongoq``: the entry point of the command line, which imports nothing before it can take a Ctrl-C."""

from __future__ import annotations


def run() -> None:
    """Run the command line; a Ctrl-C while it still imports its modules ends it with code 130, without a traceback."""
    try:
        from mongoq.cli import run as run_command

        run_command()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
