"""Target of ``mongoq worker``: loads the object that ``module:object`` names, and says what is wrong with it."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pymongo
from pymongo.errors import OperationFailure, PyMongoError

import mongoq
from mongoq.aio import AsyncBroker
from mongoq.cli.base.errors import OPERATION_FAILED, UNAVAILABLE, WRONG_USAGE, describe_driver_error
from mongoq.cli.base.output import printable
from mongoq.drivers.errors import is_refused_user
from mongoq.errors import AuthenticationFailed, MongoqError, ServerUnavailable
from mongoq.model.encoding.error_text import hide_credentials
from mongoq.pipeline.pipeline import Pipeline
from mongoq.sync import Broker
from mongoq.worker.aio.worker import AsyncWorker
from mongoq.worker.threads.worker import Worker

KINDS = (Worker, AsyncWorker, Pipeline)
WANTED = "a Worker, an AsyncWorker, a Pipeline, or a function that makes one"
SHOWN_NAMES = 8
"""Names that an error lists, at most."""
CALLING_FILES = (str(Path(mongoq.__file__).parent), str(Path(importlib.__file__).parent), "<frozen ")
"""Beginnings of the files whose frames lead to the user's code, and tell the user nothing."""
DRIVER_FILES = str(Path(pymongo.__file__).parent)
"""Beginning of the files of the driver, which mongoq calls."""


class TargetUnusable(click.ClickException):
    """``module:object`` names nothing that ``mongoq worker`` can run."""

    exit_code = WRONG_USAGE


class TargetFailed(click.ClickException):
    """The module or the factory of the user raised an error.

    Args:
        what: the beginning of the sentence, up to "raised".
        error: the error; the message has its traceback, from the user's first frame on, or the line of the user that
            called mongoq, where mongoq says what to do.
    """

    exit_code = OPERATION_FAILED

    def __init__(self, what: str, error: BaseException) -> None:
        advice = describe_own_error(error)
        if advice is None:
            super().__init__(f"{what} raised an error:\n\n{format_user_traceback(error)}")
        else:
            super().__init__(f"{find_user_line(error) or what}: {advice}")


class ServerMissing(TargetFailed):
    """The module or the factory of the user found no server."""

    exit_code = UNAVAILABLE


class UserRefused(ServerMissing):
    """The server refused the user, while the module or the factory of the user connected."""


def target_failure(what: str, error: BaseException) -> TargetFailed:
    """Return the error of the command line for an error that the user's code has raised."""
    if isinstance(error, AuthenticationFailed) or is_refused_user(error):
        return UserRefused(what, error)
    return (ServerMissing if isinstance(error, ServerUnavailable) else TargetFailed)(what, error)


def load(path: str) -> Any:
    """Import and return the object that ``module:object`` names; the current folder comes first on ``sys.path``.

    Raises:
        TargetUnusable: there is no such module or object, or it is of another kind.
        TargetFailed: the module raised an error.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise TargetUnusable(f"{path!r} is not MODULE:OBJECT, such as app:worker for the object worker of app.py")
    module = _import(module_name)
    found: Any = module
    for step in name.split("."):
        try:
            found = getattr(found, step)
        except AttributeError:
            raise TargetUnusable(_describe_missing(module, name)) from None
        except Exception as error:  # a property or a ``__getattr__`` of the user
            raise target_failure(path, error) from None
    if not isinstance(found, KINDS) and (isinstance(found, type) or not callable(found)):
        kind = f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise TargetUnusable(f"{path} is {kind}, and not {WANTED}{_list_contents(module, name)}")
    return found


def check_made(path: str, made: Any) -> None:
    """Raise ``TargetUnusable`` unless a factory has made a worker or a pipeline."""
    if not isinstance(made, KINDS):
        kind = "None" if made is None else f"an object of type {type(made).__name__}"
        raise TargetUnusable(f"the function {path} returned {kind}, and not a Worker, an AsyncWorker or a Pipeline")


class Factory:
    """Function of the user that makes a worker or a pipeline.

    Attributes:
        asynchronous: True for a coroutine function, which needs a running event loop.
        broker: the kind of broker that it takes; ``None`` if it takes none.
    """

    def __init__(self, path: str, function: Callable[..., Any]) -> None:
        self._path = path
        self._function = function
        self.asynchronous = inspect.iscoroutinefunction(function)
        self._parameter = self._find_parameter()
        self.broker = None if self._parameter is None else self._broker_kind(self._parameter)

    def make(self, *broker: Broker | AsyncBroker) -> Any:
        """Call the function, with a broker if it takes one; returns what it returns, which may have to be awaited.

        Raises:
            TargetFailed: the function raised an error.
        """
        by_name = self._parameter is not None and self._parameter.kind is inspect.Parameter.KEYWORD_ONLY
        try:
            if by_name and self._parameter is not None:
                return self._function(**{self._parameter.name: broker[0]})
            return self._function(*broker)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: the command would end without a word
            raise target_failure(f"the function {self._path}", error) from None

    async def make_async(self, *broker: Broker | AsyncBroker) -> Any:
        """Call the function, and await what it returns if that is needed."""
        return await self.resolve(self.make(*broker))

    async def resolve(self, made: Any) -> Any:
        """Await what the function has returned, if that is needed.

        Raises:
            TargetFailed: it raised an error.
        """
        try:
            return await made if inspect.isawaitable(made) else made
        except (KeyboardInterrupt, asyncio.CancelledError):  # a signal
            raise
        except BaseException as error:
            raise target_failure(f"the function {self._path}", error) from None

    def _find_parameter(self) -> inspect.Parameter | None:
        """Return the parameter for the broker; ``None`` if the function has no parameter that it needs."""
        try:
            parameters = inspect.signature(self._function).parameters.values()
        except (TypeError, ValueError):  # a function in C may not know its parameters
            return None
        variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        needed = [one for one in parameters if one.default is inspect.Parameter.empty and one.kind not in variadic]
        if not needed:
            return None
        # A handler takes one argument as well: called with a broker instead of a payload, it would do anything.
        if len(needed) == 1 and (needed[0].name == "broker" or _annotated_broker(needed[0])):
            return needed[0]
        raise TargetUnusable(
            f"{self._path} is a function of ({', '.join(one.name for one in needed)}); a function that makes a worker "
            "has no argument that it needs, or the broker alone: name it broker, or annotate it with mongoq.Broker or "
            "mongoq.AsyncBroker"
        )

    def _broker_kind(self, parameter: inspect.Parameter) -> type[Broker] | type[AsyncBroker]:
        annotated = _annotated_broker(parameter)
        return annotated or (AsyncBroker if self.asynchronous else Broker)


def _annotated_broker(parameter: inspect.Parameter) -> type[Broker] | type[AsyncBroker] | None:
    """Return the kind of broker that the annotation of a parameter names, as a class or as text."""
    annotation = parameter.annotation
    name = annotation.rpartition(".")[2] if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return {"Broker": Broker, "AsyncBroker": AsyncBroker}.get(name)


# --- the module ------------------------------------------------------------------------------------


def _import(name: str) -> ModuleType:
    if "/" in name or name.startswith(".") or name.endswith(".py"):
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise TargetUnusable(f"{name!r} is the path of a file; name a module as import does: {dotted}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):  # the module was there, and imports another one
            raise target_failure(f"module {name!r}", error) from None
        raise TargetUnusable(_describe_missing_module(missing, folder)) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may raise anything, SystemExit too
        raise target_failure(f"module {name!r}", error) from None


def _describe_missing_module(missing: str, folder: str) -> str:
    parent, _, own = missing.rpartition(".")
    package = sys.modules.get(parent)
    if package is None:
        where = f"there is no module {missing!r} in {folder}, nor elsewhere on sys.path"
        return where + _list_names("the folder has", own, _modules([folder]))
    place = getattr(package, "__file__", None) or ", ".join(getattr(package, "__path__", ()))
    where = f"module {parent!r} ({place}) has no module {own!r} in it"
    return where + _list_names("it has", own, _modules(getattr(package, "__path__", [])))


def _modules(folders: Iterable[str]) -> list[str]:
    return [one.name for one in pkgutil.iter_modules(folders)]


def _describe_missing(module: ModuleType, name: str) -> str:
    place = getattr(module, "__file__", None) or "a folder without __init__.py"
    return f"module {module.__name__!r} ({place}) was imported, and has no {name!r} in it{_list_contents(module, name)}"


def _list_contents(module: ModuleType, name: str) -> str:
    """Return the workers, pipelines and functions of a module, similar names first."""
    found = [
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (isinstance(value, KINDS) or (inspect.isfunction(value) and value.__module__ == module.__name__))
    ]
    return _list_names("it has", name, found) or f"; it has no {WANTED.removeprefix('a ')}"


def _list_names(beginning: str, name: str, found: Iterable[str]) -> str:
    names = sorted(found, key=lambda one: SequenceMatcher(None, name, one).ratio(), reverse=True)
    if not names:
        return ""
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"; {beginning} {', '.join(names[:SHOWN_NAMES])}{more}"


# --- errors ----------------------------------------------------------------------------------------


def describe_own_error(error: BaseException) -> str | None:
    """Return the message of an error of mongoq, or of a server that refuses the user; ``None`` for other errors.

    An error of mongoq with an error of the user as its cause is another one too: its traceback shows the cause.
    """
    if isinstance(error, MongoqError) and isinstance(error.__cause__, PyMongoError | None):
        return hide_credentials(str(error))
    if isinstance(error, OperationFailure) and is_refused_user(error):
        return describe_driver_error(error)
    return None


def find_user_line(error: BaseException) -> str | None:
    """Return the innermost line of the user that led to an error, as ``app.py:5``; ``None`` without one."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(Path(frame.f_code.co_filename), number) for frame, number in frames]
    users = [line for line in lines if not str(line[0]).startswith((*CALLING_FILES, DRIVER_FILES))]
    if not users:
        return None
    path, number = users[-1]
    folder = Path.cwd()
    return f"{path.relative_to(folder) if path.is_relative_to(folder) else path}:{number}"


def format_user_traceback(error: BaseException) -> str:
    """Return an error as Python prints it, without the frames of mongoq and of the import system.

    Users and passwords of connection strings are masked, in lines of source code too.
    """
    shown = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    following = [shown]
    while following:
        one = following.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        users = [frame for frame in one.stack if not frame.filename.startswith(CALLING_FILES)]
        one.stack = traceback.StackSummary.from_list(users)
        following += [linked for linked in (one.__cause__, one.__context__) if linked is not None]
    text = "".join(shown.format())
    return printable(hide_credentials(text)).rstrip()
