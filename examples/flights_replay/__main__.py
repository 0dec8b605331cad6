"""``python -m examples.flights_replay``."""

import sys

from examples.extras import require_rich

require_rich()

from examples.flights_replay.cli import main  # noqa: E402  # it needs rich

if __name__ == "__main__":
    sys.exit(main())
