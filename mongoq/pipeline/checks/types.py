"""Checks of types: what handlers take and return by their annotations, against the models of stages.

A fault is reported only when no payload at all could fit. Open annotations are left to the run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, get_origin
from uuid import UUID

from pydantic import AliasChoices, AliasPath, BaseModel, RootModel
from pydantic.fields import FieldInfo

from mongoq.model.outcomes import Outcome
from mongoq.pipeline.graph.graph import Graph, Stage
from mongoq.pipeline.graph.handlers import argument_type, classes, elements, return_type

SCALARS: tuple[type, ...] = (str, bytes, int, float, bool, datetime, date, time, timedelta, Decimal, UUID)
CONTAINERS: tuple[type, ...] = (dict, list, tuple, set, frozenset)
NUMBER_TYPES: tuple[type, ...] = (int, float, bool)


def why_never(kind: type, model: Any) -> str | None:
    """Return why no value of a class ever fits a model; ``None`` when one may fit, or when it is unknown."""
    wanted = get_origin(model) or model
    if not isinstance(wanted, type):
        return None
    if is_plain(wanted) and not issubclass(kind, wanted):
        if kind in SCALARS:
            return f"{kind.__name__} is no {wanted.__name__}"
        return _lacking(kind, wanted) if _is_written_plainly(kind) else None
    document = kind is dict or _is_written_plainly(kind)
    never = {
        "text": wanted in (str, bytes) and kind in NUMBER_TYPES,
        "scalar": wanted in SCALARS and document,
        "array": wanted in CONTAINERS and wanted is not dict and (document or kind in SCALARS),
        "document": wanted is dict and kind in SCALARS,
    }
    return f"{kind.__name__} is no {wanted.__name__}" if any(never.values()) else None


def is_plain(model: Any) -> bool:
    """Return whether a class is a pydantic model that accepts documents with its fields, and nothing else."""
    if not isinstance(model, type) or not issubclass(model, BaseModel) or issubclass(model, RootModel):
        return False
    # A "before" or "wrap" validator, or a core schema of its own, may accept any input.
    validators = model.__pydantic_decorators__.model_validators.values()
    # BaseModel has this method itself; only an override changes the values that a class accepts.
    own = any("__get_pydantic_core_schema__" in base.__dict__ for base in model.__mro__ if base is not BaseModel)
    return not own and all(validator.info.mode == "after" for validator in validators)


def _is_written_plainly(kind: type) -> bool:
    """Return whether a class is a pydantic model that is stored as its fields, without a serializer of its own."""
    return is_plain(kind) and not kind.__pydantic_decorators__.model_serializers  # type: ignore[attr-defined]


def _lacking(kind: Any, wanted: Any) -> str | None:
    if kind.model_config.get("extra") == "allow":
        return None
    names = {name for field, info in kind.model_fields.items() for name in _aliases(field, info)}
    # The reader may use any of its names for a field, and the writer may have written it by any of its names.
    missing = [
        field
        for field, info in wanted.model_fields.items()
        if info.is_required()
        # Such a field may be read from several places, or from inside another field.
        and not isinstance(info.validation_alias, AliasChoices | AliasPath)
        and names.isdisjoint(_aliases(field, info))
    ]
    return f"{kind.__name__} lacks {', '.join(missing)} of {wanted.__name__}" if missing else None


def _aliases(field: str, info: FieldInfo) -> set[str]:
    aliases = (field, info.alias, info.validation_alias, info.serialization_alias)
    return {name for name in aliases if isinstance(name, str)}


SEVERAL_TYPES = (list, tuple, set, frozenset, Iterator, AsyncIterator)


def type_faults(graph: Graph, stage: Stage) -> Iterator[str]:
    """Return the type faults of a stage, without its name."""
    if stage.frame is None and callable(stage.handler):
        if stage.join is None and stage.format is None:
            yield from _of_what_is_taken(stage)
        yield from _of_what_is_returned(graph, stage)


def _of_what_is_taken(stage: Stage) -> Iterator[str]:
    annotation = argument_type(stage.handler)
    kinds = classes(annotation)
    if stage.options.get("batch") is not None:
        if kinds and all(map(_is_one_payload, kinds)):
            yield f"model: the handler takes {_names(kinds)}, and with batch= it is given a list of payloads"
        kinds = classes(elements(annotation))
    if not kinds:
        return
    if stage.model is None:
        if all(issubclass(kind, BaseModel) or is_dataclass(kind) for kind in kinds):
            yield (
                f"model: the handler takes {_names(kinds)}, and without a model payloads come as they are stored; add "
                f"model={kinds[0].__name__}"
            )
        return
    model: Any = get_origin(stage.model) or stage.model
    # A model makes values of a known class; only pydantic models in general may make any value.
    is_decided = isinstance(model, type) and (model in (*SCALARS, *CONTAINERS) or is_plain(model))
    if is_decided and not any(may_hold(kind, model) for kind in kinds):
        yield f"model: the handler takes {_names(kinds)}, and the model makes {model.__name__}; let them agree"


def _is_one_payload(kind: type) -> bool:
    return issubclass(kind, BaseModel | dict) or kind in SCALARS


def may_hold(kind: type, value_type: type) -> bool:
    """Return whether a value of the class ``value_type`` may be an instance of ``kind``."""
    # The type system allows an int for float, and a float for complex, although they are no subclasses.
    if getattr(kind, "_is_protocol", False) or (value_type, kind) in ((int, float), (int, complex), (float, complex)):
        return True
    try:
        return issubclass(value_type, kind) or issubclass(kind, value_type)
    except TypeError:  # for example a TypedDict
        return True


def _of_what_is_returned(graph: Graph, stage: Stage) -> Iterator[str]:  # noqa: C901, PLR0912 - a list of checks
    annotation = return_type(stage.handler)
    kinds = classes(annotation)
    if stage.is_sink or kinds is None:
        return
    if all(kind is NoneType for kind in kinds):
        if stage.none == "error":
            yield "the handler returns None, where a payload is due; return one, or declare a sink, or none='drop'"
        return
    if stage.options.get("batch") is not None:
        if stage.format is None and all(map(_is_one_payload, _payloads(kinds))):
            yield f"the handler returns {_names(kinds)}, and with batch= a list with an entry for each is due"
        kinds = classes(elements(annotation)) or []
    payloads = _payloads(kinds)
    if not payloads:
        return
    if len(stage.targets) > 1:
        # A fault only if the handler returns no outcome at all: a Move among its types may choose the target.
        if len(payloads) == len([kind for kind in kinds if kind is not NoneType]):
            yield f"the handler returns {_names(payloads)}, and of several targets it is to choose one; return a Move"
    elif all(issubclass(kind, SEVERAL_TYPES) for kind in payloads):
        yield f"the handler returns {_names(payloads)}, where one payload is due; return that, or a document around it"
    else:
        for target in stage.targets:
            for reader in graph.readers(target):
                reasons = [why_never(kind, reader.model_of(target)) for kind in payloads]
                if all(reasons):
                    yield (
                        f"the handler returns {_names(payloads)}, which stage {reader.name!r:.150} cannot take from "
                        f"{target!r:.150}: {reasons[0]}; change one of them"
                    )


def _payloads(kinds: list[type]) -> list[type]:
    return [kind for kind in kinds if kind is not NoneType and not issubclass(kind, Outcome | BaseException)]


def _names(kinds: list[type]) -> str:
    return " or ".join(kind.__name__ for kind in kinds)
