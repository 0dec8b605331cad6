"""Services that all calls and pages share: the client of the broker, limits, shared readings, and lists of items."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from anyio import to_thread
from fastapi import HTTPException, Request, Response

from mongoq.aio import AsyncInspection
from mongoq.data.encoding.extended_json import json_text, time_text
from mongoq.data.envelope import item_document
from mongoq.data.item import Item
from mongoq.data.log_fields import log_fields
from mongoq.errors import ArgumentInvalid
from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.pipeline import Pipeline
from mongoq.web.client import BrokerClient
from mongoq.web.guard import grant_of
from mongoq.web.pipelines import make_drawing
from mongoq.web.readings import QueueReadings, SharedReadings
from mongoq.web.values import JSON_TYPE, make_cursor, read_cursor, to_time

logger = logging.getLogger("mongoq.audit")

Document = dict[str, Any]
"""Answer of a call, as values of extended JSON."""
MAX_LARGE = 4
"""Answers with payloads that are made at the same time: each takes several times its length, up to 16 MiB."""
LISTED = 50
"""Items in one answer or on one page, unless ``limit`` says otherwise."""
COUNT_LIMIT = 100_000
"""Items that a dry run examines, at most."""
MAX_SHOWN = 300
"""Characters of one detail of a record of the audit log, at most."""


class Services:
    """What the calls and pages work with.

    Attributes:
        client: client of the broker.
        max_bulk: items that one change may concern, at most.
        pipelines: pipelines that the app shows, by name.
        error_queues: names of the queues that only failed items of pipelines come to.
        queues: readings of the state of all queues, and signals to open pages that numbers have changed.
        letters: readings of groups of dead letters; a key begins with the name of the dead queue.
        pages: pages as open pages ask for them again.
        large: permits for answers that may be large.
        metrics: registry and collector of the metrics; ``None`` before the first scrape.
    """

    def __init__(self, client: BrokerClient, max_bulk: int, pipelines: Mapping[str, Pipeline]) -> None:
        self.client = client
        self.max_bulk = max_bulk
        self.pipelines = pipelines
        drawings = [make_drawing(each.graph, {}) for each in pipelines.values()]
        self.error_queues = frozenset(name for each in drawings for name in each.error_queues)
        self.queues = QueueReadings(client)
        self.letters: SharedReadings[Any] = SharedReadings()
        self.pages: SharedReadings[Response] = SharedReadings()
        self.large = asyncio.Semaphore(MAX_LARGE)
        self.metrics: Any = None

    def find_graph(self, pipeline: str) -> Graph:
        """Return the graph of a pipeline.

        Raises:
            HTTPException: the app has no such pipeline.
        """
        if pipeline not in self.pipelines:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no pipeline {pipeline!r:.120}")
        return self.pipelines[pipeline].graph

    async def open_queue(self, name: str) -> Any:
        """Return a handle of a queue.

        Raises:
            QueueUnknown: no caller has used the queue.
        """
        await self.client.inspect(AsyncInspection.check_known, name)
        return (await self.client.open()).queue(name)

    async def open_letters(self, queue: str, *, exact: bool = False) -> Any:
        """Return the handle of the dead queue that a name stands for; ``exact`` says that it is one itself."""
        return await self.client.inspect(AsyncInspection.dead_queue, queue, exact=exact)

    async def read_times(self, *times: Any) -> list[Any]:
        """Return times as they are, and times ago as times on the server's clock."""
        if not any(isinstance(time, timedelta) for time in times):
            return list(times)
        now = await self.client.inspect(AsyncInspection.now)
        return [to_time(time, now) for time in times]

    async def list_queue(
        self,
        queue: str,
        state: str,
        *,
        where: Any,
        since: Any = None,
        until: Any = None,
        limit: int,
        cursor: str | None,
    ) -> Document:
        """Return items of a queue; the state ``live`` stands for all that are not processed, and not blocked."""
        handle = await self.open_queue(queue)
        first, last = await self.read_times(since, until)
        selected = handle.select(state=None if state == "live" else state, since=first, until=last, where=where)
        page = await self.list_items(selected, limit, cursor)
        if state == "processed" and not (page["items"] or page["next"] or cursor):
            page |= await self.explain_no_history(queue)
        return page

    async def list_items(self, selected: Any, limit: int, cursor: str | None) -> Document:
        """Return the selected items of the next slice, ``limit`` at most, and the cursor of what is behind."""
        selected.query = read_cursor(cursor, replace(selected.query, page=limit))
        items, rest = await self.client.read(selected.read_slice)
        return {"items": await self.describe_items(items), "next": make_cursor(rest)}

    async def explain_no_history(self, queue: str) -> Document:
        """Return a note on how to have a queue keep its processed items; nothing for one that does."""
        text = await self.client.inspect(AsyncInspection.explain_no_history, queue)
        return {} if text is None else {"note": text}

    async def describe_items(self, items: Sequence[Item[Any]], *, whole: bool = False) -> list[Document]:
        """Return items of a queue as documents: blocked ones with what they wait for, letters with what they hold.

        The readable part of an item that cannot be decoded says what is wrong with it.
        """
        blockers = await self.client.inspect(AsyncInspection.blockers, items)
        holding = await self.client.inspect(AsyncInspection.holders, items)
        documents = []
        for item, holds in zip(items, holding, strict=True):
            document = item_document(item, whole=whole)
            if item.problem:
                document["problem"] = item.problem
            if document["state"] == "blocked":
                document["blocked_by"] = blockers.get(item.sequence, [])
            if holds:
                document["holds"] = item.sequence
            documents.append(document)
        return documents

    def check_limit(self, limit: int | None) -> int:
        """Return the limit of a change.

        Raises:
            ArgumentInvalid: it is above the limit of the app.
        """
        if limit is not None and limit > self.max_bulk:
            raise ArgumentInvalid("limit", f"{self.max_bulk:,} items at most in one change, not {limit:,}")
        return self.max_bulk if limit is None else limit


def record_change(request: Request, action: str, queue: str, number: int | None = None, **more: Any) -> None:
    """Log a change that was carried out.

    The record has the fields ``mongoq_user``, ``mongoq_action``, ``mongoq_queue`` and ``mongoq_number``.
    """
    user = grant_of(request.scope).user
    amount = "" if number is None else f" ({number:,} items)"
    details = "".join(f", {name} {value!r:.{MAX_SHOWN}}" for name, value in more.items() if value is not None)
    extra = {**log_fields(queue=queue), "mongoq_user": user, "mongoq_action": action, "mongoq_number": number}
    logger.info("%r: %s %r%s%s", user, action, queue, amount, details, extra=extra)


def show_filter(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what selected the items of a change, as details of ``record_change``; of a filter the fields alone.

    Its values are parts of payloads, which no log has.
    """
    where = chosen.get("where")
    ids = chosen.get("ids")
    shown = {name: chosen.get(name) for name in ("state", "stage", "reason", "error")}
    times = {name: time_text(chosen[name]) for name in ("since", "until") if chosen.get(name) is not None}
    return {**shown, **times, "where": where and list(where), "ids": ids and ", ".join(map(str, ids))}


def make_changed(queue: str, number: int, *, dry_run: bool = False, exact: bool = True) -> Document:
    """Return the answer to a change, or to its dry run."""
    return {"queue": queue, "dry_run": dry_run, "number": number, "exact": exact}


def respond(document: Any, status: int = 200) -> Response:
    """Return the response with a document in relaxed extended JSON."""
    # A lone surrogate has no UTF-8: it is written as an escape, as JSON allows.
    body = json_text(document).encode("utf-8", "backslashreplace")
    return Response(body, status, media_type=JSON_TYPE)


def bind(function: Callable[..., Any], services: Services, *, is_large: bool = False) -> Callable[..., Any]:
    """Return the endpoint of a function whose first argument is ``services``; a document that it returns is sent.

    ``is_large`` says that the document may be large, such as a list: few are read at the same time, and a thread makes
    the response, because 16 MiB in JSON take seconds.
    """

    async def answer(**arguments: Any) -> Response:
        if is_large:
            async with services.large:
                read = await function(services, **arguments)
                return read if isinstance(read, Response) else await to_thread.run_sync(respond, read)
        answered = await function(services, **arguments)
        return answered if isinstance(answered, Response) else respond(answered)

    endpoint: Any = answer
    endpoint.__name__, endpoint.__doc__ = function.__name__, function.__doc__
    # FastAPI reads the parameters from the signature; their types are names in the module of the function.
    signature = inspect.signature(function, eval_str=True)
    _, *parameters = signature.parameters.values()
    endpoint.__signature__ = signature.replace(parameters=parameters, return_annotation=Response)
    return endpoint  # type: ignore[no-any-return]
