"""The pages by keyboard, on a phone, in light and dark, and in another time zone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import mongoq
from tests.waiting import until
from tests.web.chromium import needs_browser, texts
from tests.web.conftest import make_pipeline

pytestmark = needs_browser
TAB, ENTER = "\ue004", "\ue007"
LONG = "a text without any room for a line break".replace(" ", "_") * 5
FOCUS = """
const element = document.activeElement;
if (element === null || element === document.body) return null;
const style = getComputedStyle(element);
const is_seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
const all = [...document.querySelectorAll("a[href], button, input, select, textarea, [tabindex='0']")];
return [all.indexOf(element), is_seen, element.outerHTML.slice(0, 80)];
"""
STOPS = """
const all = [...document.querySelectorAll("a[href], button, input, select, textarea, [tabindex='0']")];
return [...all.keys()].filter((place) => all[place].type !== "hidden");
"""
CONTRASTS = """
const parse = (text) => {
  const [red, green, blue, alpha] = text.match(/[\\d.]+/g).map(Number);
  return { rgb: [red, green, blue], alpha: alpha === undefined ? 1 : alpha };
};
const over = (top, below) => top.rgb.map((value, place) => value * top.alpha + below[place] * (1 - top.alpha));
const light = (rgb) => {
  const [red, green, blue] = rgb.map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const contrast = (one, two) => {
  const [low, high] = [light(one), light(two)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const behind = (element) => {
  const layers = [];
  for (let each = element; each !== null; each = each.parentElement) {
    const box = each.localName === "g" && each.querySelector("rect");
    const color = parse(box ? getComputedStyle(box).fill : getComputedStyle(each).backgroundColor);
    layers.unshift(color);
  }
  return layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
};
const results = [];
const add = (element, color, what) => {
  const below = behind(element);
  results.push([contrast(over(parse(color), below), below), what]);
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
  if (!text || ["script", "title"].includes(element.localName)) continue;
  const style = getComputedStyle(element), is_drawn = element.namespaceURI.endsWith("svg");
  add(element, is_drawn ? style.fill : style.color, element.localName + ": " + text.slice(0, 40));
}
for (const field of document.querySelectorAll("input:not([type=hidden]):not([type=checkbox]), textarea")) {
  add(field, getComputedStyle(field).color, "field " + field.name);
  if (field.placeholder) add(field, getComputedStyle(field, "::placeholder").color, "placeholder " + field.name);
}
return results;
"""
CUT_OFF = """
const cut = (box) => box.scrollWidth > box.clientWidth;
const small = (drawn) => drawn.getBoundingClientRect().width < 0.6 * drawn.viewBox.baseVal.width;
return [
  ...[document.documentElement, ...document.querySelectorAll(".scroll")].filter(cut),
  ...[...document.querySelectorAll("svg.pipeline")].filter(small),
].map((box) => box.outerHTML.slice(0, 80));
"""
"""Boxes whose content goes on behind their edges, and graphs too small for their texts."""


@pytest.fixture
def served(serve: Callable[[Any], str], make_app: Callable[..., Any], broker: mongoq.Broker) -> tuple[str, list[str]]:
    """Serves a dashboard with something on each page; returns its place and the addresses of the pages."""
    queue = broker.queue("orders", max_retries=0, history=3600)
    queue.push_many([{"note": LONG, "n": number} for number in range(3)])
    processed = queue.reserve()
    assert processed is not None
    queue.commit(processed)
    for _ in range(2):
        queue.bury(queue.reserve(), reason="no such\ncity", error=ValueError(LONG))  # type: ignore[arg-type]
    waiting = queue.push({"note": LONG})
    broker.queue("raw").push_many(range(3))
    broker.queue(LONG[:100]).pause()
    held = broker.queue("warehouse.north.intake-of-returned-parcels", max_retries=0, on_dead="hold")
    held.push_many([{"note": LONG}] * 3, sequence=LONG)
    held.bury(held.reserve(), reason="no such city", error=ValueError(LONG))  # type: ignore[arg-type]  # there is an item
    broker.schedule(LONG[:60], queue="reports.nightly.warehouse", cron="0 3 * * mon-fri", timezone="Europe/Berlin")
    place = serve(make_app(access="act", pipelines=[make_pipeline()]))
    paths = (
        "/?introduction=yes", "/queue?name=orders", "/queue?name=orders&state=processed", "/queue?name=orders&where={",
        f"/item?id={waiting}", f"/item?id={processed.id}", f"/item?id={queue.dead.peek(1)[0].id}",
        "/letters?queue=orders", "/settings?name=orders", f"/edit?id={processed.id}", "/pipelines",
        "/pipeline?name=flights", "/workers", "/queue?name=oders", "/schedules",
        f"/item?id={held.dead.peek(1)[0].id}", f"/letters?queue={held.name}", f"/queue?name={held.name}&state=blocked",
    )  # fmt: skip
    return place, [f"http://{place}{path}" for path in paths]


@pytest.fixture
def resize(browser: Any) -> Iterator[Callable[[int], None]]:
    """Gives the browser a display of another width; a narrow one is a phone."""

    def set_width(width: int) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    yield set_width
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def replace(browser: Any, *keys: str) -> None:
    """Type in the place of what is in a field."""
    browser.execute_script("document.activeElement.select()")
    press(browser, *keys)


def go_by_tab(browser: Any, selector: str, text: str = "") -> None:
    """Press Tab until an element has the focus."""
    script = (
        "const element = document.activeElement;"
        "return element.matches(arguments[0]) && (element.innerText || '').includes(arguments[1])"
    )
    for _ in range(200):
        press(browser, TAB)
        if browser.execute_script(script, selector, text):
            return
    pytest.fail(f"Tab does not lead to {selector} {text}")


@pytest.mark.prove
def test_tab_leads_to_everything_and_the_focus_is_seen(browser: Any, served: tuple[str, list[str]]) -> None:
    for address in served[1]:
        browser.get(address)
        stops = browser.execute_script(STOPS)
        assert len(stops) >= 6
        browser.execute_script("document.activeElement.blur(); getSelection().removeAllRanges()")
        reached: list[int] = []
        for _ in range(len(stops) + 1):
            press(browser, TAB)
            focus = browser.execute_script(FOCUS)
            if focus is None:
                break
            place, is_seen, html = focus
            assert is_seen, (address, html)
            reached.append(place)
        assert sorted(set(reached)) == stops, address


def test_letters_go_back_by_keyboard_alone(browser: Any, served: tuple[str, list[str]], broker: mongoq.Broker) -> None:
    browser.get(f"http://{served[0]}/")
    go_by_tab(browser, "td a", "2")
    press(browser, ENTER)
    until(lambda: texts(browser, "h1") == ["Dead letters in orders.dead"])
    # The group, whose reason has two lines: a browser changes ends of lines in fields.
    go_by_tab(browser, "td button[value=replay]")
    press(browser, ENTER)
    until(lambda: texts(browser, "h1") == ["Send 2 letters back to their queues, orders.dead?"])
    go_by_tab(browser, "main button")
    press(browser, ENTER)
    until(lambda: "2 letters of orders.dead went back" in browser.page_source)
    assert (broker.queue("orders").size(), broker.queue("orders").dead.size()) == (3, 0)


@pytest.mark.prove
def test_a_setting_and_a_payload_are_changed_by_keyboard(
    browser: Any, served: tuple[str, list[str]], broker: mongoq.Broker
) -> None:
    browser.get(next(address for address in served[1] if "/settings" in address))
    go_by_tab(browser, "#set-lease")
    press(browser, "soon", ENTER)
    until(lambda: any("is not a duration" in each for each in texts(browser, ".problem")))
    go_by_tab(browser, "#set-lease")
    replace(browser, "90s", ENTER)
    until(lambda: texts(browser, ".done") == ["Changed: lease."])
    browser.get(next(address for address in served[1] if "/edit" in address))
    go_by_tab(browser, "textarea")
    changed = '{"n": {"$numberLong": "7"},\n"note": "b"}'
    replace(browser, changed)
    go_by_tab(browser, "button", "Preview")
    press(browser, ENTER)
    until(lambda: any("long, another type" in each for each in texts(browser, ".preview td")))
    go_by_tab(browser, "button", "Push this copy")
    press(browser, ENTER)
    until(lambda: "1 copy with the edited payload was pushed to orders" in browser.page_source)
    assert {"n": 7, "note": "b"} in [item.payload for item in broker.queue("orders").peek(9)]


@pytest.mark.prove
@pytest.mark.parametrize("width", [360, 1280, 1920])
def test_no_display_cuts_a_page_off(
    browser: Any, resize: Callable[[int], None], served: tuple[str, list[str]], width: int
) -> None:
    resize(width)
    for address in served[1]:
        browser.get(address)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, address
        assert browser.execute_script(CUT_OFF) == [], address


def test_each_number_of_a_queue_is_seen_with_its_name(
    browser: Any, resize: Callable[[int], None], served: tuple[str, list[str]], broker: mongoq.Broker
) -> None:
    dead_letters = (
        "const [link] = [...document.querySelectorAll('td a')].filter((each) => each.href.endsWith('queue=orders'));"
        "const cell = link.closest('td'), head = link.closest('table').tHead.rows[0].cells[cell.cellIndex];"
        "return [link.getBoundingClientRect().right <= innerWidth, head.innerText,"
        " head.offsetWidth > 0 ? '' : getComputedStyle(cell, '::before').content]"
    )
    for width in (390, 1280, 1920):
        resize(width)
        browser.get(f"http://{served[0]}/")
        is_seen, head, beside = browser.execute_script(dead_letters)
        assert (is_seen, head or beside.strip('" ')) == (True, "dead")
        assert browser.execute_script(CUT_OFF) == []
        # What is for screen readers alone takes no room.
        sizes = "return [...document.querySelectorAll('.hidden')].map((each) => each.getBoundingClientRect().width)"
        assert max(browser.execute_script(sizes)) <= 1


@pytest.mark.prove
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_texts_can_be_read(browser: Any, served: tuple[str, list[str]], scheme: str) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    try:
        for address in served[1]:
            browser.get(address)
            background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
            assert (background == "rgb(255, 255, 255)") == (scheme == "light")
            found = browser.execute_script(CONTRASTS)
            assert len(found) >= 12
            assert [(round(contrast, 2), what) for contrast, what in found if contrast < 4.5] == [], address
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_times_are_in_the_zone_of_the_reader_and_in_utc(browser: Any, served: tuple[str, list[str]]) -> None:
    browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    try:
        browser.get(f"http://{served[0]}/queue?name=orders")
        until(lambda: any("UTC" in each for each in texts(browser, "time")))
        [shown] = texts(browser, "td time")
        [stored] = browser.execute_script("return [...document.querySelectorAll('td time')].map(time => time.dateTime)")
    finally:
        browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})
    at = datetime.fromisoformat(stored)
    utc = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    assert shown.endswith(utc)
    local = at.astimezone(UTC) + timedelta(hours=5, minutes=30)
    assert re.search(rf"\b0?{(local.hour - 1) % 12 + 1}:{local:%M:%S}\b", shown.removesuffix(utc)), shown
