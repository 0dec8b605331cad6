"""Exceptions that raise, or return nonsense, when something is asked of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["AWKWARD", "awkward"]

DEPTH = 3_000
HUGE = 3_000_000


class NoTrace(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no traceback")


class NoClass(BaseException):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class NoClassError(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class NoAttributes(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class NoText(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt("no text")

    __repr__ = __str__


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)

    __repr__ = __str__


class Fussy(str):
    """A text whose methods raise."""

    __slots__ = ()

    def isascii(self) -> bool:
        raise LookupError("no ascii")

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise LookupError("no bytes")

    def __getitem__(self, _: Any) -> str:
        raise LookupError("no part")


class FussyText(Exception):
    def __str__(self) -> str:
        return Fussy("a text")


class Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__"):
            raise AttributeError("no name")
        return super().__getattribute__(name)


class NamelessError(Exception, metaclass=Nameless):
    pass


class NamelessBase(BaseException, metaclass=Nameless):
    pass


def _odd_name() -> BaseException:
    kind = type("Odd", (Exception,), {"__module__": 7})
    kind.__qualname__ = "od\ud800d\0"
    return kind("text")


def _deep() -> BaseException:
    group: BaseException = NamelessError("inside")
    for _ in range(DEPTH):
        group = BaseExceptionGroup("outside", [group])
    return group


def _round() -> BaseException:
    error, cause = ValueError("one"), NoTrace("other")
    error.__cause__, cause.__context__ = cause, error
    return error


def _causes() -> BaseException:
    error, cause = ValueError("one"), ValueError("other")
    error.__cause__, cause.__cause__ = cause, error
    return error


AWKWARD: dict[str, Callable[[], BaseException]] = {
    "no traceback": lambda: NoTrace("text"),
    "no class": lambda: NoClass("text"),
    "no class, an Exception": lambda: NoClassError("text"),
    "no attributes": lambda: NoAttributes("text"),
    "no text": NoText,
    "endless text": Endless,
    "fussy text": FussyText,
    "huge text": lambda: ValueError("ü" * HUGE),
    "surrogates": lambda: ValueError("\ud800\udfff"),
    "no name": lambda: NamelessError("text"),
    "no name, no Exception": lambda: NamelessBase("text"),
    "empty name": lambda: type("", (Exception,), {})("text"),
    "odd name": _odd_name,
    "group": lambda: ExceptionGroup("several", [NamelessError("a"), NoText(), NoTrace("\ud800")]),
    "deep group": _deep,
    "going round": _round,
    "causes of each other": _causes,
    "recursion": lambda: RecursionError("maximum recursion depth exceeded"),
    "stop": lambda: StopIteration(1),
    "generator exit": GeneratorExit,
    "system exit": lambda: SystemExit("\ud800"),
}


def awkward(name: str) -> BaseException:
    """Return a new exception of this name."""
    return AWKWARD[name]()
