"""Settings of the shop, from the environment: the app and its worker read the same variables."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Settings", "SettingsInvalid"]

GRACE_SECONDS = 20.0
MAX_PORT = 65_535
SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


class SettingsInvalid(ValueError):
    """A variable is missing or cannot be used. The message never holds a value: it may be a password."""


@dataclass(frozen=True)
class Settings:
    """What differs from one deployment to the next.

    Attributes:
        uri: MongoDB connection string; ``MONGOQ_URI``, which the command ``mongoq`` reads as well.
        database: database of orders and queues, ``MONGOQ_DATABASE``; default that of the URI, else ``mongoq``.
        collection: collection of the queues, ``MONGOQ_COLLECTION``.
        worker_in_app: run the worker in the process of the app, ``SHOP_WORKER_IN_APP``.
        grace: seconds that handlers may go on when the process stops, ``SHOP_GRACE``.
        carrier: URL that is called to ship an order, ``SHOP_CARRIER``; ``None`` ships without a call.
        host: interface that the app listens on, ``SHOP_HOST``.
        port: port of the app, ``SHOP_PORT``; 0 for any free one.
    """

    uri: str = field(repr=False)
    database: str | None = None
    collection: str = "mongoq"
    worker_in_app: bool = False
    grace: float = GRACE_SECONDS
    carrier: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    port: int = 8000

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings.

        Raises:
            SettingsInvalid: a variable is missing or cannot be used; it is named.
        """
        uri = environment.get("MONGOQ_URI", "")
        if not uri:
            raise SettingsInvalid("MONGOQ_URI is missing: set it to the connection string of your MongoDB")
        return cls(
            uri=uri,
            database=environment.get("MONGOQ_DATABASE") or None,
            collection=environment.get("MONGOQ_COLLECTION") or "mongoq",
            worker_in_app=_read_switch(environment, "SHOP_WORKER_IN_APP"),
            grace=_read_seconds(environment, "SHOP_GRACE", GRACE_SECONDS),
            carrier=environment.get("SHOP_CARRIER") or None,
            host=environment.get("SHOP_HOST") or "127.0.0.1",
            port=_read_port(environment, "SHOP_PORT", 8000),
        )


def _read_switch(environment: Mapping[str, str], name: str) -> bool:
    try:
        return SWITCH[environment.get(name, "").lower()]
    except KeyError:
        raise SettingsInvalid(f"{name} is neither 1 nor 0") from None


def _read_seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    try:
        seconds = float(environment.get(name) or default)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise SettingsInvalid(f"{name} is not a number of seconds, such as 20")
    return seconds


def _read_port(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and int(text[:6]) <= MAX_PORT):
        raise SettingsInvalid(f"{name} is not a port, a number from 0 to {MAX_PORT}")
    return int(text)
