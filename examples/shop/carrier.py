"""Carrier: the service of another company, which brings the goods to the customer."""

from __future__ import annotations

import logging

import httpx

__all__ = ["Carrier"]

logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log each URL, which may hold a password


class Carrier:
    """Calls the carrier by HTTP.

    Args:
        url: where parcels are posted; ``None`` for a shop without a carrier, in which nothing is called.
    """

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._client = httpx.AsyncClient(timeout=60)

    async def send(self, order: str, key: str) -> None:
        """Hand a parcel over. The key is the same in each attempt: by it the carrier knows a repeated call.

        Raises:
            httpx.HTTPError: the carrier does not answer, or refuses the parcel.
        """
        if self._url is not None:
            response = await self._client.post(self._url, json={"order": order}, headers={"Idempotency-Key": key})
            response.raise_for_status()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
