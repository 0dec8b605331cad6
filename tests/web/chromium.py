"""Chromium as the browser of tests, and looks into its page."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.waiting import until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs a browser: chromium and chromium-driver of Debian"),
    pytest.mark.xdist_group("browser"),
]


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
