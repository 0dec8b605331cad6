"""Clients for asyncio, of both kinds, that are closed whatever becomes of the test: an open one fails a later test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient


@asynccontextmanager
async def opened(kind: str, uri: str, **options: Any) -> AsyncIterator[Any]:
    """Open a client of PyMongo (``aio``) or of Motor (``motor``)."""
    client: Any = {"aio": AsyncMongoClient, "motor": AsyncIOMotorClient}[kind](uri, **options)
    try:
        yield client
    finally:
        closing = client.close()
        if closing is not None:
            await closing
