"""Handlers and models of the pipelines of these tests; recipes import them from here."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Flight(BaseModel):
    number: int
    carrier: str
    seats: int = 180


class Numbered(BaseModel):
    """It has no carrier."""

    number: int


class Desk:
    """Handlers that are not plain functions."""

    def __call__(self, payload: Any) -> Any:
        return payload

    @staticmethod
    def stamp(payload: Any) -> Any:
        return payload


desk = Desk()


def check(flight: Flight) -> Flight:
    return flight


def route(flight: Flight, job: Any) -> Any:
    return flight


def pass_on(payload: Any) -> Any:
    return payload


def pair(left: Any, right: Any) -> Any:
    return [left, right]


def load(payload: Any) -> None:
    pass


async def load_async(payload: Any) -> None:
    pass


def without_arguments() -> None:
    pass
