"""Type compatibility: whether a stored value of one type can ever be read as a value of another type."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, get_origin
from uuid import UUID

from pydantic import AliasChoices, AliasPath, BaseModel, RootModel
from pydantic.fields import FieldInfo

__all__ = ["CONTAINERS", "SCALARS", "is_plain", "why_never"]

SCALARS: tuple[type, ...] = (str, bytes, int, float, bool, datetime, date, time, timedelta, Decimal, UUID)
CONTAINERS: tuple[type, ...] = (dict, list, tuple, set, frozenset)
NUMBERS: tuple[type, ...] = (int, float, bool)


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
        "text": wanted in (str, bytes) and kind in NUMBERS,
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
    written = {name for field, info in kind.model_fields.items() for name in _aliases(field, info)}
    # The reader may use any of its names for a field, and the writer may have written it by any of its names.
    missing = [
        field
        for field, info in wanted.model_fields.items()
        if info.is_required() and not _is_elsewhere(info) and written.isdisjoint(_aliases(field, info))
    ]
    return f"{kind.__name__} lacks {', '.join(missing)} of {wanted.__name__}" if missing else None


def _is_elsewhere(info: FieldInfo) -> bool:
    """Return whether a field may be read from several places, or from inside another field."""
    return isinstance(info.validation_alias, AliasChoices | AliasPath)


def _aliases(field: str, info: FieldInfo) -> set[str]:
    told = (field, info.alias, info.validation_alias, info.serialization_alias)
    return {name for name in told if isinstance(name, str)}
