"""Users with the rights of a role, and brokers that send the operations of a role as its user."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Any

import pytest
from pymongo import MongoClient

import mongoq
from mongoq.aio import AsyncBroker, AsyncQueue
from mongoq.cli.checks.role import create_role_command
from mongoq.drivers.backend import open_backend
from mongoq.embedded import EmbeddedServer
from mongoq.sync import Broker, Queue

OPERATIONS: dict[str, frozenset[str]] = {
    "producer": frozenset({"push", "push_many"}),
    "viewer": frozenset(
        {"get", "peek", "size", "counts", "next_when", "history", "is_paused"}
        | {"queues", "stats", "trail", "workers", "bindings", "ping", "health"}
    ),
}
"""Public methods that a role may call; a worker may call all of them."""

_as_role: ContextVar[bool] = ContextVar("as_role", default=False)


def create_user(client: MongoClient[Any], database: str, role: str, *, without: str | None = None) -> str:
    """Create a user of the database with the rights of a role, but for an action; return its name and password."""
    command = create_role_command(role, database, "mongoq")
    for privilege in command["privileges"]:
        privilege["actions"] = [action for action in privilege["actions"] if action != without]
    command["privileges"] = [privilege for privilege in command["privileges"] if privilege["actions"]]
    name = command["createRole"] = f"{role}-without-{without}" if without else role
    client[database].command(command)
    client[database].command("createUser", name, pwd=name, roles=[name])
    return name


def drop_users(client: MongoClient[Any], database: str) -> None:
    """Drop the users and roles of a database, which outlive it."""
    client[database].command("dropAllUsersFromDatabase")
    client[database].command("dropAllRolesFromDatabase")


def uri_of(server: EmbeddedServer, database: str, user: str) -> str:
    """Return the URI of a user of ``create_user``."""
    place = server.uri.rpartition("@")[2].replace("authSource=admin", f"authSource={database}")
    return f"mongodb://{user}:{user}@{place}"


def restrict(broker: mongoq.Broker | mongoq.AsyncBroker, collection: Any) -> None:
    """Let a broker send the operations of a role by the collection of the role's user.

    All other commands are sent as the owner of the test. A transaction stays with the client of its session.
    """
    driver: Any = broker._driver
    restricted = open_backend(collection, asynchronous=driver.asynchronous)
    role, own_send = type(driver)(restricted, driver._context, driver._flush), driver.send

    def send(command: Any) -> Any:
        is_own = command.session is not None and getattr(command.session, "client", None) is not restricted.client
        return (role.send if _as_role.get() and not is_own else own_send)(command)

    driver.send = send
    performer = driver._performer
    if driver.asynchronous:
        performer.start_task = functools.partial(_start_task, performer.start_task)


def _start_task(start: Callable[..., Any], work: Any, context: Context | None = None) -> Any:
    """Start a task of group commit, which has a context of its own, for the same user as its caller."""
    if context is not None:
        context.run(_as_role.set, _as_role.get())
    return start(work, context)


def mark_operations(monkeypatch: pytest.MonkeyPatch, names: Collection[str]) -> None:
    """Let methods of brokers and queues tell ``restrict`` that a role's operation runs."""
    for kind in (Broker, AsyncBroker, Queue, AsyncQueue):
        for name in names:
            method = getattr(kind, name, None)
            if method is not None:
                monkeypatch.setattr(kind, name, _marked(method))


def _marked(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(*args: Any, **options: Any) -> Any:
            with _marking():
                return await method(*args, **options)

        return call_async

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        with _marking():
            result = method(*args, **options)
        if isinstance(result, AsyncIterator):
            return _iterate_async(result)
        return _iterate(result) if isinstance(result, Iterator) else result

    return call


@contextmanager
def _marking() -> Iterator[None]:
    token = _as_role.set(True)
    try:
        yield
    finally:
        _as_role.reset(token)


def _iterate(items: Iterator[Any]) -> Iterator[Any]:
    while True:
        with _marking():
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


async def _iterate_async(items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    while True:
        with _marking():
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
        yield item
