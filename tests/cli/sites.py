"""Databases on a server on which each user needs rights, and users with the roles that ``mongoq role`` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from click import Group
from click.testing import CliRunner
from pymongo import MongoClient

import mongoq
from mongoq.embedded import EmbeddedServer
from tests.servers import drop


@dataclass(frozen=True)
class Site:
    """A database of a test, and its owner's client."""

    server: EmbeddedServer
    client: MongoClient[Any]
    name: str
    command_line: Group

    def environment(self, role: str, *, without: str | None = None) -> dict[str, str]:
        """Create a user with a role of ``mongoq role``, but for an action, and return the variables that name it."""
        printed = CliRunner().invoke(self.command_line, ["role", role, "--database", self.name, "--json"])
        command = json.loads(printed.stdout)
        for privilege in command["privileges"]:
            privilege["actions"] = [action for action in privilege["actions"] if action != without]
        command["privileges"] = [privilege for privilege in command["privileges"] if privilege["actions"]]
        command["createRole"] = f"{role}-without-{without}" if without else role
        self.client[self.name].command(command)
        return self.create_user(command["createRole"])

    def create_user(self, role: str) -> dict[str, str]:
        """Create a user with a role of the database, by its name, and return the variables that name it."""
        self.client[self.name].command("createUser", role, pwd=role, roles=[role])
        place = self.server.uri.rpartition("@")[2].replace("authSource=admin", f"authSource={self.name}")
        return {"MONGOQ_URI": f"mongodb://{role}:{role}@{place}", "MONGOQ_DATABASE": self.name}

    def connect(self, role: str) -> mongoq.Broker:
        """Connect as a new user with a role."""
        return mongoq.connect(self.environment(role)["MONGOQ_URI"], database=self.name)

    def set_up(self) -> mongoq.Broker:
        """Make the collection, with items in all states, and return the owner's broker."""
        broker = mongoq.Broker(self.client[self.name]["mongoq"])
        orders = broker.queue("orders", history=600)
        broker.bind("news", "orders", "mails")
        orders.push_many([{"n": n} for n in range(4)])
        orders.commit(orders.reserve() or pytest.fail("nothing"))
        orders.bury(orders.reserve() or pytest.fail("nothing"), reason="tests")
        return broker


@contextmanager
def open_site(server: EmbeddedServer, command_line: Group) -> Iterator[Site]:
    """Hand out a database of its own, which goes with its users at the end."""
    with MongoClient[Any](server.uri) as client:
        site = Site(server, client, f"site_{uuid4().hex[:8]}", command_line)
        yield site
        client[site.name].command("dropAllUsersFromDatabase")
        client[site.name].command("dropAllRolesFromDatabase")
        drop(client, site.name)
