"""Settings of a queue as a page with a form; a setting that the model gets later appears there by itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from http import HTTPStatus
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fastapi import APIRouter, HTTPException, Request, Response

from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import queue_name, read_duration
from mongoq.model.encoding.extended_json import NONE, setting_text
from mongoq.model.settings import SETTINGS, QueueSettings, resolve_settings
from mongoq.protocol.insight import StoredSettings, read_settings
from mongoq.web import audit
from mongoq.web.pages.forms import first_values, go_to, read_fields
from mongoq.web.pages.render import Renderer
from mongoq.web.services import Services
from mongoq.web.values import QueueName

TYPES: Mapping[str, Any] = get_type_hints(QueueSettings)
ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
"""Line of an attribute in a docstring, with the lines that continue it."""
HINTS = {timedelta: "a duration such as 90s, 5m, 2h or 7d", int: "a whole number", float: "a number", str: "a text"}
HINTS_BY_NAME = {"dead": "the name of a queue", "rate": "a rate such as 100/m"}
"""What a reader may enter where the type of a setting does not say enough."""
SHOWN = "shown:"
"""Beginning of the name of a field that has the value which the reader saw."""
FORM_FIELDS = frozenset({"queue", *SETTINGS, *(SHOWN + name for name in SETTINGS)})
"""Names of the fields of the form."""
MAX_NAME_CHARACTERS = 60
"""Characters of an unknown field's name that an answer repeats, at most."""


def _read_descriptions() -> dict[str, str]:
    """Return the descriptions of the settings, from the docstring of their class; none where Python has left it out."""
    text = inspect.getdoc(QueueSettings) or ""
    return {name: " ".join(about.split()).replace("`", "") for name, about in ATTRIBUTE.findall(text)}


DESCRIPTIONS = _read_descriptions()


@dataclass(frozen=True, slots=True)
class SettingField:
    """A setting of a queue, as a field of the form.

    Attributes:
        name: name of the setting.
        about: its description.
        kind: type of its values: ``timedelta``, ``int``, ``float``, ``bool`` or ``str``.
        choices: texts that it may have; empty if it may have others.
        may_be_none: True if it may have no value.
        text: value in effect, as text.
        default: value without a stored one, as text.
        is_stored: True if its value is stored.
        entered: text that the reader has entered; the value in effect before that.
        problem: what is wrong with the text that the reader has entered; empty for nothing.
    """

    name: str
    about: str
    kind: type
    choices: tuple[str, ...]
    may_be_none: bool
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
    def hint(self) -> str:
        """What a reader may enter; empty for a setting that is chosen from a list."""
        if self.choices:
            return ""
        hint = HINTS_BY_NAME.get(self.name) or HINTS.get(self.kind, "")
        return f"{hint}, or {NONE}" if self.may_be_none else hint

    def read(self, text: str) -> Any:
        """Return the value of a text.

        Raises:
            ValueError: the text is no value of this setting.
        """
        text = text.strip()
        if self.may_be_none and text.lower() == NONE:
            return None
        if self.choices:
            if text not in self.choices:
                raise ValueError(f"{text!r:.60} is none of {', '.join(self.choices)}")
            return text == "True" if self.kind is bool else text
        try:
            return _READERS[self.kind](text)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{text!r:.60} is not {self.hint}") from error


def _read_text(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


_READERS: Mapping[type, Any] = {timedelta: read_duration, int: int, float: float, str: _read_text}


def make_fields(read: StoredSettings) -> list[SettingField]:
    """Return the settings of a queue, in the order in which the model names them."""
    name = read.settings.name
    defaults = resolve_settings(name, {})
    return [
        _make_field(each, getattr(read.settings, each), getattr(defaults, each), is_stored=each in read.stored)
        for each in SETTINGS
    ]


def _make_field(name: str, value: Any, default: Any, *, is_stored: bool) -> SettingField:
    kind, choices, may_be_none = _read_type(TYPES[name])
    text = _show(value)
    about = DESCRIPTIONS.get(name, "")
    return SettingField(name, about, kind, choices, may_be_none, text, _show(default), is_stored, text)


def _read_type(annotated: Any) -> tuple[type, tuple[str, ...], bool]:
    """Return the type of a setting's values, the texts that it may have, and whether it may have no value."""
    alternatives = [each for each in get_args(annotated) if each is not NoneType]
    may_be_none = NoneType in get_args(annotated)
    if get_origin(annotated) is Literal:
        alternatives, may_be_none = [annotated], False
    [kind] = alternatives[:1] or [annotated]
    none = (NONE,) if may_be_none else ()
    if get_origin(kind) is Literal:
        return str, (*map(str, get_args(kind)), *none), may_be_none
    if kind is bool:
        return bool, ("True", "False", *none), may_be_none
    return kind if kind in _READERS else str, (), may_be_none


def _show(value: Any) -> str:
    """Return the value of a setting as a reader would enter it."""
    if value is None:
        return NONE
    return setting_text(value) if isinstance(value, timedelta) else str(value)


def make_router(services: Services, renderer: Renderer) -> APIRouter:
    """Return the page of settings, and the call that its form is sent to."""
    page = _SettingsPage(services, renderer)
    router = APIRouter(include_in_schema=False)
    router.add_api_route("/settings", page.show, methods=["GET"])
    router.add_api_route("/settings", page.save, methods=["POST"])
    return router


class _SettingsPage:
    """Shows the settings of a queue, and stores those that a reader has changed."""

    def __init__(self, services: Services, renderer: Renderer) -> None:
        self._services = services
        self._client = services.client
        self._renderer = renderer

    async def show(self, request: Request, name: QueueName, changed: str = "") -> Response:
        """Show the settings of a queue; ``changed`` names those that the reader has just changed."""
        read = await self._client.read(read_settings, name)
        return self._render(request, read, make_fields(read), done=frozenset(SETTINGS) & set(changed.split(",")))

    async def save(self, request: Request) -> Response:
        """Store the settings whose texts differ from those that the reader saw, for all processes within a second.

        The others stay, also if somebody else has changed them meanwhile.
        """
        entered = first_values(await read_fields(request))
        _refuse_unknown(entered)
        name = queue_name(entered.get("queue"))
        handle = await self._services.open_queue(name)
        read = await self._client.read(read_settings, name)
        settings = [_enter(each, entered) for each in make_fields(read)]
        changes: dict[str, Any] = {}
        for place, each in enumerate(settings):
            if each.name not in entered or _flatten(each.entered) == _flatten(entered.get(SHOWN + each.name, "")):
                continue
            try:
                changes[each.name] = each.read(each.entered)
            except ValueError as error:
                settings[place] = replace(each, problem=str(error))
        if not any(each.problem for each in settings) and changes:
            try:
                await self._client.call(handle.configure, **changes)
            except ArgumentInvalid as error:
                settings = [
                    replace(each, problem=error.problem) if each.name == error.argument else each for each in settings
                ]
                if not any(each.problem for each in settings):
                    raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        if any(each.problem for each in settings):
            return self._render(request, read, settings, status=HTTPStatus.UNPROCESSABLE_ENTITY)
        if changes:
            texts: dict[str, Any] = {setting: _show(value) for setting, value in changes.items()}
            audit.record(request, "configure", name, **texts)
        return go_to(request, "/settings", name=name, changed=",".join(changes))

    def _render(
        self,
        request: Request,
        read: StoredSettings,
        settings: Sequence[SettingField],
        *,
        done: frozenset[str] = frozenset(),
        status: int = HTTPStatus.OK,
    ) -> Response:
        values = {"queue": read.settings.name, "paused": read.paused, "settings": settings, "done": sorted(done)}
        return self._renderer.page(request, "settings", status, **values)


def _refuse_unknown(entered: Mapping[str, str]) -> None:
    """Refuse a form with a field that is no setting: its sender expects it to change something."""
    if unknown := sorted(entered.keys() - FORM_FIELDS):
        problem = f"no setting of a queue; the settings are {', '.join(SETTINGS)}"
        raise ArgumentInvalid(unknown[0][:MAX_NAME_CHARACTERS], problem)


def _enter(field: SettingField, entered: Mapping[str, str]) -> SettingField:
    return replace(field, entered=entered.get(field.name, field.text).strip())


def _flatten(text: str) -> str:
    """Return a text without the ends of lines, which a browser leaves out of a field of one line."""
    return text.replace("\r", "").replace("\n", "")
