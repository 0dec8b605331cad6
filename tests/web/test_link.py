"""The secret link: without it all callers on this machine read, with it a browser or a program makes changes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import pytest

import mongoq
from tests.web.conftest import HTML

ROOT = Path(__file__).parents[2]
READ, CHANGE = "/api/queues", "/api/items/push"
BODY = {"queue": "orders", "payload": 1}
FORM = {"action": "pause", "queue": "orders", "confirmed": "1"}


@pytest.fixture
def link(tmp_path: Path, uri: str, database: str) -> Iterator[str]:
    """The link that a dashboard has printed, which makes changes; its log goes into a file."""
    environment = {**os.environ, "MONGOQ_URI": uri, "MONGOQ_DATABASE": database, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mongoq", "dashboard", "--http", ":0", "--act"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        yield next(line.split()[-1] for line in process.stdout if "/link?token=" in line)
        process.terminate()


def test_changes_need_the_link_of_this_start(link: str, queue: mongoq.Queue[Any], tmp_path: Path) -> None:
    import httpx

    queue.push(1)
    root, _, token = link.partition("/link?token=")

    def push(client: httpx.Client, **headers: str) -> int:
        return client.post(CHANGE, json=BODY, headers=headers).status_code

    with httpx.Client(base_url=root) as client:
        # Without it all can be read, and nothing changed; a browser is told on a page.
        assert client.get(READ).status_code == 200
        page = client.get("/queue?name=orders", headers=HTML).text
        assert ("read-only" in page, 'action="/change"' in page) == (True, False)
        refused = client.post(CHANGE, json=BODY, headers=HTML)
        assert (refused.status_code, "link" in refused.json()["detail"]) == (403, True)
        refused = client.post("/change", data=FORM, headers=HTML)
        assert (refused.status_code, "changes need the link that the dashboard has printed" in refused.text) == (
            403, True,
        )  # fmt: skip
        for wrong in ("", "x", "%C3%A4", f"{token}x", f"x{token}"):
            answer = client.get(f"/link?token={wrong}", headers=HTML)
            assert (answer.status_code, "set-cookie" in answer.headers, token in answer.text) == (403, False, False)
            assert "this is not the link of the running dashboard" in answer.text
        assert push(client) == 403
        # The link is for this machine alone; a program may send the token itself.
        for headers, status in (
            ({"Host": "queues.example.com"}, 403),
            ({"X-Forwarded-For": "10.0.0.7"}, 403),
            ({"Origin": "http://evil.example"}, 403),
        ):
            if "Origin" not in headers:
                answer = client.get("/link", params={"token": token}, headers=headers)
                assert "set-cookie" not in answer.headers
            assert push(client, Authorization=f"Bearer {token}", **headers) == status, headers
        for header, status in ((f"Basic {token}", 403), ("Bearer x", 403), (f"Bearer {token}", 201)):
            assert push(client, Authorization=header) == status, header
        assert queue.size() == 2

        opened = client.get("/link", params={"token": token})
        assert (opened.status_code, opened.headers["location"], opened.headers["cache-control"]) == (
            303,
            "/",
            "no-store",
        )
        [cookie] = SimpleCookie(opened.headers["set-cookie"]).values()
        assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["secure"]) == (True, "strict", "/", "")
        assert (cookie["expires"], cookie["max-age"]) == ("", "")  # it ends with the browser
        assert token not in (cookie.key, cookie.value)
        assert (push(client), client.post("/change", data=FORM).status_code) == (201, 303)
        assert (queue.size(), queue.is_paused()) == (3, True)
        # A page of another port changes nothing with the cookie.
        for headers in ({"Origin": "http://127.0.0.1:9"}, {"Sec-Fetch-Site": "same-site"}):
            assert push(client, **headers) == 403
        client.cookies.clear()
        for value in (f"{cookie.key}=", f"{cookie.key}={token}", f"other={cookie.value}", f"{cookie.key}=x"):
            assert push(client, Cookie=value) == 403, value
        assert push(client, Cookie=f"{cookie.key}={cookie.value}") == 201
        # The token was exchanged; a browser that kept the address, and a program, cannot use it once more.
        again = client.get("/link", params={"token": token}, headers=HTML)
        assert (again.status_code, "set-cookie" in again.headers, "has been used" in again.text) == (403, False, True)
        assert push(client, Authorization=f"Bearer {token}") == 403
        mine = {"Cookie": f"{cookie.key}={cookie.value}"}
        page = client.get("/", headers={**HTML, **mine}).text
        assert ('action="/logout"' in page, 'action="/logout"' in client.get("/", headers=HTML).text) == (True, False)
        assert client.post("/logout").status_code == 403
        left = client.post("/logout", headers=mine)
        assert (left.status_code, left.headers["location"], "max-age=0" in left.headers["set-cookie"].lower()) == (
            303, "/", True,
        )  # fmt: skip
        assert push(client, **mine) == 403
    log = (tmp_path / "log").read_text()
    assert ("push" in log, token in log, "WARNING" in log, "127.0.0.1" in log) == (True, False, True, True)
    assert log.count("a wrong link was opened") == 5


def test_an_app_without_a_link_has_no_such_path(api: Any) -> None:
    assert api.get("/link", token="x").status_code == 404
