"""The dashboard in a real browser: Chromium, driven by Selenium.

With the variable ``MONGOQ_SCREENSHOTS`` the pictures of the docs go into the folder that it names.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import mongoq
from mongoq.web import Users, create_app
from tests.waiting import until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs a browser: chromium and chromium-driver of Debian"),
    pytest.mark.xdist_group("browser"),
]
SECRETS = {"ada": "a-secret-of-ada", "bob": "a-secret-of-bob"}
USERS = "ada:act:a-secret-of-ada\nbob:read:a-secret-of-bob"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser without a window; it can reach this machine only."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    profile = tmp_path_factory.mktemp("browser")
    for argument in (
        "--headless=new",
        "--no-sandbox",  # Chromium refuses to run as root otherwise, as in most containers
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1200,760",
        f"--user-data-dir={profile}",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    opened.set_page_load_timeout(120)
    yield opened
    opened.quit()


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    """Serves apps on ports of the system's choice, and returns their addresses."""
    running: list[tuple[Any, uvicorn.Server, threading.Thread]] = []

    def start(app: Any) -> str:
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        running.append((app, server, thread))
        until(lambda: server.started)
        return f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    yield start
    for app, server, thread in running:
        app.state.feed.close()
        server.should_exit = True
        thread.join()


@pytest.fixture
def broker(uri: str, database: str) -> Iterator[mongoq.Broker]:
    """A broker of the test's own."""
    with mongoq.connect(uri, database=database) as opened:
        yield opened


def texts(browser: Any, selector: str) -> list[str]:
    """Return the texts of elements; in one step, because the page may renew itself between two."""
    script = "return [...document.querySelectorAll(arguments[0])].map(element => element.innerText.trim())"
    found: list[str] = browser.execute_script(script, selector)
    return found


def click(browser: Any, selector: str, text: str = "") -> None:
    """Click on the first element with a text, as soon as there is one; in one step too."""
    script = (
        "const elements = [...document.querySelectorAll(arguments[0])];"
        "const first = elements.find(each => each.innerText.includes(arguments[1]));"
        "first?.click(); return first !== undefined"
    )
    until(lambda: browser.execute_script(script, selector, text))


def save_picture(browser: Any, name: str) -> None:
    folder = os.environ.get("MONGOQ_SCREENSHOTS")
    if folder:
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def test_a_failing_item_is_found_explained_and_sent_back(
    browser: Any, serve: Callable[[Any], str], broker: mongoq.Broker
) -> None:
    """A queue fills while somebody looks; three letters go back after a fix, and are done."""
    queue = broker.queue("orders", max_retries=0, history=3600)
    broker.queue("mails").push_many(range(40))
    broker.queue("mails").pause()
    place = serve(create_app(broker, access="act"))
    browser.get(f"http://{place}/")
    until(lambda: "numbers are live" in texts(browser, "#live"))
    assert "orders" not in texts(browser, "tbody th a")
    queue.push_many([{"id": number, "city": "Paris" if number % 2 else None} for number in range(6)])
    until(lambda: "orders" in texts(browser, "tbody th a"))

    is_fixed = threading.Event()
    worker = mongoq.Worker(broker)

    @worker.consumer("orders", max_retries=0)
    def ship(order: dict[str, Any]) -> None:
        if order["city"] is None and not is_fixed.is_set():
            raise KeyError("city")

    worker.run(drain=True)
    until(lambda: "3" in texts(browser, "tbody td a"))
    save_picture(browser, "dashboard")
    click(browser, "tbody td a", "3")
    until(lambda: texts(browser, "h1") == ["Dead letters in orders.dead"])
    save_picture(browser, "dashboard-letters")
    assert "KeyError" in browser.page_source
    click(browser, "main table a code")
    until(lambda: 'raise KeyError("city")' in "".join(texts(browser, "pre")))
    save_picture(browser, "dashboard-item")
    browser.back()
    until(lambda: texts(browser, "h1") == ["Dead letters in orders.dead"])
    is_fixed.set()
    browser.execute_script("document.querySelectorAll('input[type=checkbox]').forEach(box => box.click())")
    click(browser, "button", "Send the selected letters back")
    until(lambda: texts(browser, "h1") == ["Send 3 letters back to their queues, orders.dead?"])
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    until(lambda: "3 letters of orders.dead went back" in browser.page_source)
    worker = mongoq.Worker(broker)
    worker.consumer("orders", max_retries=0)(ship)
    worker.run(drain=True)
    browser.get(f"http://{place}/queue?name=orders&state=processed")
    assert len(texts(browser, "tbody tr")) == 6
    assert queue.dead.size() == 0


def test_a_reader_has_no_buttons(browser: Any, serve: Callable[[Any], str], broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", max_retries=0)
    queue.push(1)
    queue.bury(queue.reserve(), reason="no such city")  # type: ignore[arg-type]  # there is an item
    place = serve(create_app(broker, access=Users(USERS)))
    for user, buttons in (("bob", 0), ("ada", 4)):
        browser.get(f"http://{user}:{SECRETS[user]}@{place}/letters?queue=orders")
        assert len(texts(browser, "form[method=post] button")) == buttons
    answer = browser.execute_async_script(
        "fetch(location.origin + '/api/letters/drop', {method: 'POST', headers: {'content-type': 'application/json', "
        "authorization: 'Basic ' + btoa('bob:a-secret-of-bob')}, body: '{\"queue\": \"orders\"}'})"
        ".then(answer => arguments[0](answer.status))"
    )
    assert (answer, queue.dead.size()) == (403, 1)


def test_hostile_payloads_stay_text(browser: Any, serve: Callable[[Any], str], broker: mongoq.Broker) -> None:
    evil = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
    queue = broker.queue(evil[:60], max_retries=0)
    for payload in (evil, {"__proto__": {"hacked": 1}}, "javascript:window.hacked=1", "a\u202eb", "x" * 5_000_000):
        queue.push({"note": payload}, headers={"x": evil})
        queue.bury(queue.reserve(), reason=evil, error=evil)  # type: ignore[arg-type]  # there is an item
    place = serve(create_app(broker, access="act"))
    browser.get(f"http://{place}/")
    addresses = [link.get_attribute("href") for link in browser.find_elements(By.CSS_SELECTOR, "main a")]
    browser.get(next(address for address in addresses if "/letters" in address))
    addresses += [link.get_attribute("href") for link in browser.find_elements(By.CSS_SELECTOR, "main a")]
    assert len(addresses) >= 8
    for address in dict.fromkeys(addresses):
        assert address.startswith(f"http://{place}/")
        browser.get(address)
        assert browser.execute_script("return window.hacked === undefined && ({}).hacked === undefined")
        assert browser.find_elements(By.CSS_SELECTOR, "main img, main script") == []
    complaints = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert [text for text in complaints if "Content Security Policy" in text] == []


def test_a_phone_shows_all_without_scrolling_sideways(
    browser: Any, serve: Callable[[Any], str], broker: mongoq.Broker
) -> None:
    queue = broker.queue("orders", max_retries=0)
    id = queue.push({"note": "a text without any room for a line break".replace(" ", "_") * 5})
    place = serve(create_app(broker))
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        for path in ("/", "/queue?name=orders", f"/item?id={id}", "/workers"):
            browser.get(f"http://{place}{path}")
            width = browser.execute_script("return document.documentElement.scrollWidth")
            assert width <= 360, path
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
