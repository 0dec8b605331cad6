"""``python -m examples.outbox``: on a private MongoDB, or on one of yours with ``--uri``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import mongoq
from examples.outbox.shop import Shop, Unpaid
from examples.servers import server

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; return 0 when it went as described, 2 without a server or without transactions."""
    parser = argparse.ArgumentParser(prog="python -m examples.outbox", description="The transactional outbox.")
    parser.add_argument("--uri", help="a MongoDB to use: collections 'outbox' and 'orders' (default: a private one)")
    options = parser.parse_args(arguments)
    try:
        with server(options.uri) as uri, Shop(uri) as shop:
            tell(shop)
    except mongoq.MongoqError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def tell(shop: Shop) -> None:
    """Order, fail to order, fail to ship, and ship."""
    shop.order("Ada", 12)
    say("ordered, in one commit", shop)
    try:
        shop.order("Mallory", 99, paid=False)
    except Unpaid as error:
        say(f"rolled back, {error}", shop)
    try:
        shop.ship(broken=True)
    except ConnectionError as error:
        say(f"not shipped, {error}", shop)
    shop.ship()
    say("shipped, in one commit", shop)


def say(what: str, shop: Shop) -> None:
    """Print what has happened, and what is there now."""
    print(f"{what:24} {shop}")


if __name__ == "__main__":
    sys.exit(main())
