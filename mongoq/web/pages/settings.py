"""Settings of a queue as a page with a form; a setting that the model gets later appears there by itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from datetime import timedelta
from http import HTTPStatus
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from fastapi import HTTPException, Request, Response

from mongoq import StoredSettings
from mongoq.aio import AsyncInspection
from mongoq.data.arguments import queue_name, read_duration
from mongoq.data.encoding.extended_json import NONE, setting_text
from mongoq.data.settings import SETTINGS, QueueSettings, resolve_settings
from mongoq.errors import ArgumentInvalid
from mongoq.web.pages.render import first_values, go_to, read_fields, render
from mongoq.web.queues import store_settings
from mongoq.web.services import Services
from mongoq.web.values import QueueName

ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
"""Line of an attribute in a docstring, with the lines that continue it."""
# There is no docstring where Python has left them out.
ABOUT = {name: " ".join(about.split()) for name, about in ATTRIBUTE.findall(inspect.getdoc(QueueSettings) or "")}
"""Descriptions of the settings."""
READERS: Mapping[type, Any] = {timedelta: read_duration, int: int}
"""Functions that read the values of a type; the others are texts."""
HINTS = {
    timedelta: "a duration such as 90s, 5m, 2h or 7d",
    int: "a whole number",
    "dead": "the name of a queue",
    "rate": "a rate such as 100/m",
}
"""What a reader may enter, by the name of a setting or the type of its values."""
SHOWN = "shown:"
"""Beginning of the name of a field that has the value which the reader saw."""
FORM_FIELDS = frozenset({"queue", *SETTINGS, *(SHOWN + name for name in SETTINGS)})
"""Names of the fields of the form."""
MAX_NAME_CHARACTERS = 60
"""Characters of an unknown field's name that an answer repeats, at most."""


class Kind(NamedTuple):
    """Values that a setting may have.

    Attributes:
        type: type of the values.
        choices: texts to choose from; empty if it may have others.
        may_be_none: True if it may have no value.
        hint: what a reader may enter; empty if there are choices.
    """

    type: Any
    choices: tuple[str, ...]
    may_be_none: bool
    hint: str

    def read(self, text: str) -> Any:
        """Return the value of a text.

        Raises:
            ValueError: the text is no value of this setting.
        """
        if self.may_be_none and text.lower() == NONE:
            return None
        if self.choices and text not in self.choices:
            raise ValueError(f"{text!r:.60} is none of {', '.join(self.choices)}")
        try:
            if text:
                return READERS.get(self.type, str)(text)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{text!r:.60} is not {self.hint}") from error
        raise ValueError(f"{text!r:.60} is not {self.hint}")


def _find_kind(name: str) -> Kind:
    annotated = get_type_hints(QueueSettings)[name]
    may_be_none = NoneType in get_args(annotated)
    kind = get_args(annotated)[0] if may_be_none else annotated
    choices = get_args(kind)
    hint = "" if choices else HINTS.get(name) or HINTS.get(kind, "a text")
    return Kind(kind, choices, may_be_none, f"{hint}, or {NONE}" if hint and may_be_none else hint)


KINDS = {name: _find_kind(name) for name in SETTINGS}


def make_fields(
    read: StoredSettings, entered: Mapping[str, str] | None = None, problems: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return the settings of a queue as fields of the form, in the order in which the model names them.

    Args:
        read: values in effect.
        entered: texts that the reader has entered, by the name of the setting.
        problems: what is wrong with them.
    """
    defaults = resolve_settings(read.settings.name, {})
    fields = []
    for name in SETTINGS:
        text = _show(getattr(read.settings, name))
        fields.append(
            {
                "name": name,
                "label": name.replace("_", " "),
                "about": ABOUT.get(name, "").replace("`", ""),
                "text": text,
                "default": _show(getattr(defaults, name)),
                "is_stored": name in read.stored,
                "choices": KINDS[name].choices,
                "hint": KINDS[name].hint,
                "entered": (entered or {}).get(name, text).strip(),
                "problem": (problems or {}).get(name, ""),
            }
        )
    return fields


def _show(value: Any) -> str:
    """Return the value of a setting as a reader would enter it."""
    if value is None:
        return NONE
    return setting_text(value) if isinstance(value, timedelta) else str(value)


async def show(services: Services, request: Request, name: QueueName, changed: str = "") -> Response:
    """Show the settings of a queue; ``changed`` names those that the reader has just changed."""
    read = await services.client.inspect(AsyncInspection.settings, name)
    values = {"settings": make_fields(read), "done": sorted({*SETTINGS} & {*changed.split(",")})}
    return render(request, "settings", queue=name, paused=read.paused, **values)


async def save(services: Services, request: Request) -> Response:
    """Store the settings whose texts differ from those that the reader saw, for all processes within a second.

    The others stay, also if somebody else has changed them meanwhile.
    """
    entered = first_values(await read_fields(request))
    if unknown := sorted(entered.keys() - FORM_FIELDS):  # its sender expects it to change something
        problem = f"no setting of a queue; the settings are {', '.join(SETTINGS)}"
        raise ArgumentInvalid(unknown[0][:MAX_NAME_CHARACTERS], problem)
    name = queue_name(entered.get("queue"))
    read = await services.client.inspect(AsyncInspection.settings, name)
    changes: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for setting, kind in KINDS.items():
        text = entered.get(setting)
        if text is None or _flatten(text.strip()) == _flatten(entered.get(SHOWN + setting, "")):
            continue
        try:
            changes[setting] = kind.read(text.strip())
        except ValueError as error:
            problems[setting] = str(error)
    if changes and not problems:
        try:
            shown = {setting: _show(value) for setting, value in changes.items()}
            await store_settings(services, request, name, changes, shown=shown)
        except ArgumentInvalid as error:
            if error.argument not in SETTINGS:
                raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
            problems[error.argument] = error.problem
    if problems:
        values = {"settings": make_fields(read, entered, problems), "done": ()}
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        return render(request, "settings", status, queue=name, paused=read.paused, **values)
    return go_to(request, "/settings", name=name, changed=",".join(changes))


def _flatten(text: str) -> str:
    """Return a text without the ends of lines, which a browser leaves out of a field of one line."""
    return text.replace("\r", "").replace("\n", "")
