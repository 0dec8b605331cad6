"""The dashboard behind nginx: as the docs configure it, and with its defaults; the prefix removed, or not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mongoq
from tests.waiting import until
from tests.web.conftest import make_users
from tests.web.crawling import PAUSE, check_prefix, fill

if TYPE_CHECKING:
    import httpx

UNPACKED = Path(sys.prefix) / "nginx" / "usr" / "sbin" / "nginx"
NGINX = shutil.which("nginx") or (str(UNPACKED) if UNPACKED.is_file() else None)
pytestmark = pytest.mark.skipif(NGINX is None, reason="needs nginx, which make setup unpacks where apt is allowed")

PAGE = Path(__file__).parents[2] / "docs" / "running-the-dashboard.md"
ORIGIN = "https://example.com"
SECRET = "a-secret-of-ada"
DEFAULT = "server {{ listen 80; location /queues/ {{ proxy_pass http://127.0.0.1:9472{end}; }} }}"
MAIN = """
pid {folder}/nginx.pid;
daemon off;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {server}
}}
"""

Start = Callable[..., "httpx.Client"]


@pytest.fixture
def app_of(broker: mongoq.Broker, make_app: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the app that stands behind nginx."""
    fill(broker)
    users = make_users(f"ada:act:{SECRET}\nbob:read:a-secret-of-bob")
    return lambda **options: make_app(**{"access": users, "root_path": "/queues", **options})


@pytest.fixture
def start(tmp_path: Path, serve: Callable[[Any], str]) -> Iterator[Start]:
    """Serves an app behind nginx, and returns a client of nginx, by a socket of the file system."""
    import httpx

    ending: list[Callable[[], Any]] = []

    def start_one(app: Any, server: str) -> httpx.Client:
        address, log = tmp_path / "nginx.sock", tmp_path / "start.log"
        server = server.replace("127.0.0.1:9472", serve(app))
        server = re.sub(r"listen [^;]*;", f"listen unix:{address};", re.sub(r"ssl_certificate\S* [^;]*;", "", server))
        (tmp_path / "nginx.conf").write_text(MAIN.format(folder=tmp_path, server=server))
        process = subprocess.Popen(
            [str(NGINX), "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", str(log)]
        )
        ending.extend([process.wait, process.terminate])
        until(lambda: address.exists() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        # TLS ends in front of nginx here: the client says https alone by the origin of its changes.
        transport = httpx.HTTPTransport(uds=str(address))
        client = httpx.Client(transport=transport, base_url="http://example.com", timeout=60)
        ending.append(client.close)
        return client

    yield start_one
    for end in reversed(ending):
        end()


def configured(end: str = "") -> str:
    """Return the configuration of the page; with ``end`` nginx replaces the prefix by it."""
    [server] = re.findall(r"^```nginx\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(server).replace("proxy_pass http://127.0.0.1:9472;", f"proxy_pass http://127.0.0.1:9472{end};")


@pytest.mark.parametrize(("kind", "end"), [("configured", ""), ("default", "/")])
def test_pages_forms_and_events_work_behind_nginx(
    start: Start, app_of: Callable[..., Any], broker: mongoq.Broker, kind: str, end: str
) -> None:
    app = app_of(origins=[ORIGIN])
    client = start(app, configured(end) if kind == "configured" else DEFAULT.format(end=end))
    assert client.get("/queues/").status_code == 401
    client.auth = ("ada", SECRET)
    headers = {"Origin": ORIGIN}
    assert client.post("/queues/change", data={**PAUSE, "action": "resume"}, headers=headers).status_code == 303
    headers = {"Origin": "https://evil.example"}
    assert client.post("/queues/change", data=PAUSE, headers=headers).status_code == 403
    if kind == "default":  # nginx has replaced the host by its own name for the app
        headers = {"Origin": "http://example.com"}
        assert client.post("/queues/change", data=PAUSE, headers=headers).status_code == 403
    check_prefix(client, "/queues", broker.queue("orders"), origin=ORIGIN)


def test_with_the_host_that_the_browser_sees_no_origin_is_needed(
    start: Start, app_of: Callable[..., Any], broker: mongoq.Broker
) -> None:
    client = start(app_of(), configured())
    client.auth = ("bob", "a-secret-of-bob")
    assert client.get("/queues/").status_code == 200
    assert client.post("/queues/change", data=PAUSE, headers={"Origin": ORIGIN}).status_code == 403
    assert not broker.queue("orders").is_paused()
    client.auth = ("ada", SECRET)
    assert client.post("/queues/change", data=PAUSE, headers={"Origin": ORIGIN}).status_code == 303
    assert broker.queue("orders").is_paused()


def test_without_users_a_proxy_that_says_so_is_refused(start: Start, app_of: Callable[..., Any]) -> None:
    client = start(app_of(access="act"), configured())
    assert client.get("/queues/").status_code == 403
