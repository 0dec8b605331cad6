"""Visits of all pages of the dashboard below a prefix, as a browser would make them."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING, Any

import mongoq

if TYPE_CHECKING:
    import httpx

ADDRESS = re.compile(r'\b(href|src|action|data-events)="([^"]*)"')
MAX_PAGES = 60
PAUSE = {"action": "pause", "queue": "orders", "confirmed": "1"}


def fill(broker: mongoq.Broker) -> None:
    """Store items of all kinds, so that pages have links."""
    queue = broker.queue("orders", history=3600, max_retries=0)
    queue.push_many(range(3))
    queue.pop()
    queue.bury(queue.reserve(), reason="no such city")  # type: ignore[arg-type]  # there are items


def crawl(client: httpx.Client, root: str) -> set[str]:
    """Load all pages and files that the first page leads to, and return their paths; each address has the prefix."""
    waiting, seen = [f"{root}/"], set[str]()
    while waiting and len(seen) < MAX_PAGES:
        address = waiting.pop(0)
        answer = client.get(address, headers={"Accept": "text/html"})
        assert answer.status_code == 200, (address, answer.text[:500])
        seen.add(address)
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        found = [(kind, unescape(target)) for kind, target in ADDRESS.findall(answer.text)]
        for kind, target in found:
            if target.startswith("#"):
                continue
            assert target.startswith(f"{root}/"), (address, target)
            if kind in ("href", "src") and target not in (*seen, *waiting):
                waiting.append(target)
    return {address.removeprefix(root).partition("?")[0] for address in seen}


def check_prefix(client: httpx.Client, root: str, queue: mongoq.Queue[Any], *, origin: str = "") -> None:
    """Assert that pages, files, calls, forms and the stream of events work below a prefix."""
    paths = crawl(client, root)
    assert {"/", "/queue", "/item", "/letters", "/workers", "/static/style.css", "/static/live.js"} <= paths
    assert client.get(f"{root}/api/items", params={"queue": "orders"}).json()["items"][0]["payload"] == 2
    assert client.get(f"{root}/api/nothing").status_code == 404
    with client.stream("GET", f"{root}/events") as stream:
        assert next(stream.iter_lines()).startswith("retry:")
    changed = client.post(f"{root}/change", data=PAUSE, headers={"Origin": origin or str(client.base_url).rstrip("/")})
    assert changed.status_code == 303, changed.text
    assert changed.headers["location"] == f"{root}/queue?name=orders"
    assert queue.is_paused()
    assert client.get(changed.headers["location"]).status_code == 200
