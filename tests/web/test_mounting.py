"""The dashboard inside other applications: the examples of the docs, served, below their prefix."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mongoq
from tests.web.crawling import check_prefix, fill

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "running-the-dashboard.md"
EXAMPLE = re.compile(r'^```python title="(\w+)\.py"\n(.*?)^```', re.MULTILINE | re.DOTALL)
TOKEN = {"x-token": "kJ7wq-Zt4fR2p9Lm"}
SETTINGS = """
SECRET_KEY = "a secret of the test"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
ROOT_URLCONF = "urls"
ALLOWED_HOSTS = ["*"]
"""
URLS = """
from django.http import HttpResponse
from django.urls import path
urlpatterns = [path("", lambda request: HttpResponse("the site"))]
"""
USERS = """
import django
django.setup()
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
call_command("migrate", verbosity=0)
for name, rights in (("eve", {}), ("bob", {"is_staff": True}), ("ada", {"is_staff": True, "is_superuser": True})):
    client = Client()
    client.force_login(User.objects.create_user(name, **rights))
    print(client.cookies["sessionid"].value)
"""
Serve = Callable[[str, str], str]


@pytest.fixture
def serve(tmp_path: Path, uri: str, database: str) -> Iterator[Serve]:
    """Serves an example of the page by uvicorn, and returns its address."""
    running: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    examples = dict(EXAMPLE.findall(PAGE.read_text()))
    place = uri.replace("/?", f"/{database}?")

    def start(name: str, app: str) -> str:
        assert examples[name].count('"mongodb://localhost:27017/shop"') == 1
        program = examples[name].replace("mongodb://localhost:27017/shop", place)
        (tmp_path / f"{name}.py").write_text(program)
        command = [sys.executable, "-m", "uvicorn", f"{name}:{app}", "--port", "0", "--timeout-graceful-shutdown", "1"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"running on (http://\S+)", line):
                reader = threading.Thread(target=process.stderr.read)
                reader.start()
                readers.append(reader)
                return found[1]
        raise AssertionError("".join(lines))

    yield start
    for process in running:
        process.terminate()
        process.wait(60)
    for process, reader in zip(running, readers, strict=True):
        reader.join()
        process.stderr.close()  # type: ignore[union-attr]  # it is a pipe


@pytest.fixture
def filled(broker: mongoq.Broker) -> mongoq.Broker:
    fill(broker)
    return broker


@pytest.mark.prove
@pytest.mark.parametrize("name", ["in_fastapi", "in_starlette"])
def test_an_app_that_is_mounted_works_below_its_prefix(serve: Serve, filled: mongoq.Broker, name: str) -> None:
    import httpx

    with httpx.Client(base_url=serve(name, "app"), timeout=60) as client:
        for path in ("/queues/", "/queues/api/queues", "/queues/static/style.css", "/queues/events"):
            assert client.get(path).status_code == 403
        assert client.post("/queues/change", data={"action": "pause", "queue": "orders"}).status_code == 403
        client.headers.update(TOKEN)
        check_prefix(client, "/queues", filled.queue("orders"))


@pytest.mark.prove
def test_sessions_of_django_decide(serve: Serve, tmp_path: Path, filled: mongoq.Broker) -> None:
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "urls.py").write_text(URLS)
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings"}
    command = [sys.executable, "-c", USERS]
    made = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    sessions = dict(zip(("eve", "bob", "ada"), made.stdout.split(), strict=True))
    import httpx

    with httpx.Client(base_url=serve("in_django", "application"), timeout=60) as client:

        def ask(session: str | None) -> tuple[int, int]:
            client.cookies.clear()
            if session is not None:
                client.cookies.set("sessionid", session)
            body = {"queue": "mails", "payload": 1}
            read = client.get("/queues/api/queues").status_code
            return read, client.post("/queues/api/items/push", json=body).status_code

        assert client.get("/").text == "the site"
        assert ask(None) == ask("another") == ask(sessions["eve"]) == (403, 403)
        assert ask(sessions["bob"]) == (200, 403)
        assert ask(sessions["ada"]) == (200, 201)
        check_prefix(client, "/queues", filled.queue("orders"))
