"""``python -m examples.flights``."""

import sys
from importlib.util import find_spec

if find_spec("rich") is None:
    sys.exit("rich is not installed: run pip install 'mongoq-driver[demo]', or make setup")

from examples.flights.cli import main

if __name__ == "__main__":
    sys.exit(main())
