"""The dashboard in a real browser: Chromium, driven by Selenium.

With the variable ``MONGOQ_SCREENSHOTS`` the pictures of the docs go into the folder that it names.
"""

from __future__ import annotations

import linecache
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mongoq
from tests.waiting import until
from tests.web.chromium import click, needs_browser, texts
from tests.web.conftest import bury

pytestmark = needs_browser
ENTER = "\ue007"


HANDLER = """\
def ship(order):
    if order["city"] is None and not is_fixed.is_set():
        raise KeyError("city")
"""


def make_handler(is_fixed: threading.Event) -> Callable[[dict[str, Any]], None]:
    """Return a handler as of a program of a user: the pictures of the docs show its file and line."""
    name, code = "shop/worker.py", {"is_fixed": is_fixed}
    linecache.cache[name] = len(HANDLER), None, HANDLER.splitlines(keepends=True), name
    exec(compile(HANDLER, name, "exec"), code)
    return code["ship"]  # type: ignore[return-value]


def save_picture(browser: Any, name: str) -> None:
    folder = os.environ.get("MONGOQ_SCREENSHOTS")
    if folder:
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def test_a_failing_item_is_found_explained_and_sent_back(
    browser: Any, serve: Callable[[Any], str], make_app: Callable[..., Any], broker: mongoq.Broker
) -> None:
    """A queue fills while somebody looks; three letters go back after a fix, and are done."""
    broker.queue("mails").push_many(range(40))
    broker.queue("mails").pause()
    place = serve(make_app(access="act"))
    browser.get(f"http://{place}/")
    browser.delete_all_cookies()  # those of other tests on this machine
    browser.refresh()
    until(lambda: "numbers are live" in texts(browser, "#live"))
    assert "orders" not in texts(browser, "tbody th a")
    queue = broker.queue("orders", max_retries=0, history=3600)
    queue.push_many([{"id": number, "city": "Paris" if number % 2 else None} for number in range(6)])
    is_fixed = threading.Event()
    ship = make_handler(is_fixed)
    worker = mongoq.Worker(broker)
    worker.consumer("orders", max_retries=0)(ship)
    worker.run(drain=True)
    until(lambda: "3" in texts(browser, "tbody td a"))  # the page renews itself
    assert "orders" in texts(browser, "tbody th a")
    assert "What is shown here" in texts(browser, "section h2")
    browser.refresh()
    assert texts(browser, "section h2") == []
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
    for answer in ("Enter", "click"):
        browser.execute_script("document.querySelectorAll('input[type=checkbox]').forEach(box => box.click())")
        click(browser, "button", "Send the selected letters back")
        until(lambda: texts(browser, "h1") == ["Send 3 letters back to their queues, orders.dead?"])
        if answer == "click":
            click(browser, "main button", "Send 3 letters")
        else:
            until(lambda: browser.switch_to.active_element.tag_name == "a")  # the focus comes a moment later
            browser.switch_to.active_element.send_keys(ENTER)  # it leads back, and changes nothing
            until(lambda: texts(browser, "h1") == ["Dead letters in orders.dead"])
    until(lambda: "3 letters of orders.dead went back" in browser.page_source)
    worker = mongoq.Worker(broker)
    worker.consumer("orders", max_retries=0)(ship)
    worker.run(drain=True)
    browser.get(f"http://{place}/queue?name=orders&state=processed")
    assert len(texts(browser, "tbody tr")) == 6
    assert queue.dead.size() == 0


def test_a_page_that_stands_still_says_so_and_catches_up(
    browser: Any,
    serve: Callable[[Any], str],
    make_app: Callable[..., Any],
    broker: mongoq.Broker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ticked box keeps the page as it is, so that nothing goes away under a hand."""
    monkeypatch.setattr("mongoq.web.readings.MIN_PAUSE_SECONDS", 0.2)  # the test need not wait for the usual five
    queue = broker.queue("orders", max_retries=0)
    bury(queue, "first")
    browser.get(f"http://{serve(make_app(access='act'))}/letters?queue=orders")
    until(lambda: texts(browser, "#live") == ["numbers are live"])
    click(browser, "input[type=checkbox]")
    still = "numbers stand still while you choose or write here"
    until(lambda: texts(browser, "#live") == [still])
    bury(queue, "second")
    until(lambda: texts(browser, "#live") == [f"{still}; there are newer ones"])
    assert len(texts(browser, "input[type=checkbox]")) == 1
    click(browser, "input[type=checkbox]")
    until(lambda: len(texts(browser, "input[type=checkbox]")) == 2)
    until(lambda: texts(browser, "#live") == ["numbers are live"])


def test_hostile_payloads_stay_text(
    browser: Any, serve: Callable[[Any], str], make_app: Callable[..., Any], broker: mongoq.Broker
) -> None:
    evil = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
    queue = broker.queue(evil[:60], max_retries=0)
    for payload in (evil, {"__proto__": {"hacked": 1}}, "javascript:window.hacked=1", "a\u202eb"):
        queue.push({"note": payload}, headers={"x": evil})
        queue.bury(queue.reserve(), reason=evil, error=evil)  # type: ignore[arg-type]  # there is an item
    place = serve(make_app(access="act"))
    browser.get(f"http://{place}/")
    addresses = [link.get_attribute("href") for link in browser.find_elements("css selector", "main a")]
    browser.get(next(address for address in addresses if "/letters" in address))
    addresses += [link.get_attribute("href") for link in browser.find_elements("css selector", "main a")]
    assert len(addresses) >= 7
    for address in dict.fromkeys(addresses):
        assert address.startswith(f"http://{place}/")
        browser.get(address)
        assert browser.execute_script("return window.hacked === undefined && ({}).hacked === undefined")
        assert browser.find_elements("css selector", "main img, main script") == []
    complaints = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert [text for text in complaints if "Content Security Policy" in text] == []
