"""Check of a broker's health: a server that takes writes, and a collection that mongoq can use."""

from __future__ import annotations

from mongoq.protocol.base.bootstrap import check_collection, hello_command
from mongoq.protocol.base.retry import retry_until_reply
from mongoq.protocol.flow import Flow
from mongoq.protocol.state.context import BrokerContext


def find_faults(broker: BrokerContext) -> Flow[list[str]]:
    """Return what is wrong with the server that answers; raise the error of a server or collection that is unusable.

    ``hello``, ``listCollections`` and ``find`` of the schema document.
    """
    faults = []
    if not broker.serverless:
        hello = yield from retry_until_reply(hello_command())
        if not hello.get("isWritablePrimary"):
            faults.append("the server that answers is not the primary of its replica set, which alone takes writes")
    yield from check_collection(broker)
    return faults


def find_notes(broker: BrokerContext) -> list[str]:
    """Return how callers wait for items, where that is not by a change stream; asks no server."""
    registry = broker.registry
    if registry.deaf:
        return ["the server has no change stream, or the user no right to it: waiting callers look now and then"]
    if registry.barred:
        return ["the client has one connection only, too few for a change stream: waiting callers look now and then"]
    if registry.is_awaited() and registry.running and registry.cursor is None:
        return ["the change stream is about to be opened: until then waiting callers look now and then"]
    return []
