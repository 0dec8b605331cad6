"""Settings of a queue as a page with a form; a setting that the model gets later appears there by itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from http import HTTPStatus
from types import NoneType
from typing import Any, get_args, get_type_hints

from fastapi import HTTPException, Request, Response

from mongoq import StoredSettings
from mongoq.aio import AsyncInspection
from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import queue_name, read_duration
from mongoq.model.encoding.extended_json import NONE, setting_text
from mongoq.model.settings import SETTINGS, QueueSettings, resolve_settings
from mongoq.web.pages.forms import first_values, go_to, read_fields
from mongoq.web.pages.render import render
from mongoq.web.queues import store_settings
from mongoq.web.services import Services
from mongoq.web.values import QueueName

TYPES: Mapping[str, Any] = get_type_hints(QueueSettings)
ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
"""Line of an attribute in a docstring, with the lines that continue it."""
# There is no docstring where Python has left them out.
ABOUT = {name: " ".join(about.split()) for name, about in ATTRIBUTE.findall(inspect.getdoc(QueueSettings) or "")}
"""Descriptions of the settings."""
READERS: Mapping[type, Any] = {timedelta: read_duration, int: int}
"""Functions that read the values of a type; the others are texts."""
HINTS = {timedelta: "a duration such as 90s, 5m, 2h or 7d", int: "a whole number"}
HINTS_BY_NAME = {"dead": "the name of a queue", "rate": "a rate such as 100/m"}
"""What a reader may enter where the type of a setting does not say enough."""
SHOWN = "shown:"
"""Beginning of the name of a field that has the value which the reader saw."""
FORM_FIELDS = frozenset({"queue", *SETTINGS, *(SHOWN + name for name in SETTINGS)})
"""Names of the fields of the form."""
MAX_NAME_CHARACTERS = 60
"""Characters of an unknown field's name that an answer repeats, at most."""


@dataclass(frozen=True, slots=True)
class SettingField:
    """A setting of a queue, as a field of the form.

    Attributes:
        name: name of the setting.
        text: value in effect, as text.
        default: value without a stored one, as text.
        is_stored: True if its value is stored.
        entered: text that the reader has entered; the value in effect before that.
        problem: what is wrong with the text that the reader has entered; empty for nothing.
    """

    name: str
    text: str
    default: str
    is_stored: bool
    entered: str
    problem: str = ""

    @property
    def label(self) -> str:
        """Name of the setting, in words."""
        return self.name.replace("_", " ")

    @property
    def about(self) -> str:
        """Description of the setting."""
        return ABOUT.get(self.name, "").replace("`", "")

    @property
    def may_be_none(self) -> bool:
        """True if it may have no value."""
        return NoneType in get_args(TYPES[self.name])

    @property
    def kind(self) -> Any:
        """Type of its values."""
        return get_args(TYPES[self.name])[0] if self.may_be_none else TYPES[self.name]

    @property
    def choices(self) -> tuple[str, ...]:
        """Texts that it may have; empty if it may have others."""
        return get_args(self.kind)

    @property
    def hint(self) -> str:
        """What a reader may enter; empty for a setting that is chosen from a list."""
        if self.choices:
            return ""
        hint = HINTS_BY_NAME.get(self.name) or HINTS.get(self.kind, "a text")
        return f"{hint}, or {NONE}" if self.may_be_none else hint

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
            value = READERS.get(self.kind, str)(text)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{text!r:.60} is not {self.hint}") from error
        if value == "":
            raise ValueError(f"{text!r:.60} is not {self.hint}")
        return value


def make_fields(read: StoredSettings) -> list[SettingField]:
    """Return the settings of a queue, in the order in which the model names them."""
    defaults = resolve_settings(read.settings.name, {})
    fields = []
    for name in SETTINGS:
        text = _show(getattr(read.settings, name))
        fields.append(SettingField(name, text, _show(getattr(defaults, name)), name in read.stored, entered=text))
    return fields


def _show(value: Any) -> str:
    """Return the value of a setting as a reader would enter it."""
    if value is None:
        return NONE
    return setting_text(value) if isinstance(value, timedelta) else str(value)


async def show(services: Services, request: Request, name: QueueName, changed: str = "") -> Response:
    """Show the settings of a queue; ``changed`` names those that the reader has just changed."""
    read = await services.client.inspect(AsyncInspection.settings, name)
    return _render(request, read, make_fields(read), done=sorted({*SETTINGS} & {*changed.split(",")}))


async def save(services: Services, request: Request) -> Response:
    """Store the settings whose texts differ from those that the reader saw, for all processes within a second.

    The others stay, also if somebody else has changed them meanwhile.
    """
    entered = first_values(await read_fields(request))
    if unknown := sorted(entered.keys() - FORM_FIELDS):  # its sender expects it to change something
        problem = f"no setting of a queue; the settings are {', '.join(SETTINGS)}"
        raise ArgumentInvalid(unknown[0][:MAX_NAME_CHARACTERS], problem)
    name = queue_name(entered.get("queue"))
    await services.open_queue(name)
    read = await services.client.inspect(AsyncInspection.settings, name)
    fields = [replace(each, entered=entered.get(each.name, each.text).strip()) for each in make_fields(read)]
    changes: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for each in fields:
        if each.name not in entered or _flatten(each.entered) == _flatten(entered.get(SHOWN + each.name, "")):
            continue
        try:
            changes[each.name] = each.read(each.entered)
        except ValueError as error:
            problems[each.name] = str(error)
    if changes and not problems:
        try:
            shown = {setting: _show(value) for setting, value in changes.items()}
            await store_settings(services, request, name, changes, shown=shown)
        except ArgumentInvalid as error:
            if error.argument not in SETTINGS:
                raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
            problems[error.argument] = error.problem
    if problems:
        fields = [replace(each, problem=problems.get(each.name, "")) for each in fields]
        return _render(request, read, fields, HTTPStatus.UNPROCESSABLE_ENTITY)
    return go_to(request, "/settings", name=name, changed=",".join(changes))


def _render(
    request: Request,
    read: StoredSettings,
    settings: Sequence[SettingField],
    status: int = HTTPStatus.OK,
    *,
    done: Sequence[str] = (),
) -> Response:
    values = {"queue": read.settings.name, "paused": read.paused, "settings": settings, "done": done}
    return render(request, "settings", status, **values)


def _flatten(text: str) -> str:
    """Return a text without the ends of lines, which a browser leaves out of a field of one line."""
    return text.replace("\r", "").replace("\n", "")
