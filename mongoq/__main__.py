"""Runs the command line: ``python -m mongoq``."""

from mongoq.cli import run

if __name__ == "__main__":
    run()
