"""Target of ``mongoq worker``: loads the object that ``module:object`` names, and says what is wrong with it."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pymongo
from pymongo.errors import OperationFailure, PyMongoError

import mongoq
from mongoq.aio import AsyncBroker
from mongoq.cli.base.output import OPERATION_FAILED, UNAVAILABLE, WRONG_USAGE, describe_driver_error, printable
from mongoq.data.encoding.error_text import hide_credentials
from mongoq.drivers.errors import is_refused_user
from mongoq.errors import AuthenticationFailed, MongoqError, ServerUnavailable
from mongoq.pipeline.pipeline import Pipeline
from mongoq.sync import Broker
from mongoq.worker.aio.worker import AsyncWorker
from mongoq.worker.outcome_resolver import is_function
from mongoq.worker.threads.worker import Worker

KINDS = (Worker, AsyncWorker, Pipeline)
WANTED = "a Worker, an AsyncWorker, a Pipeline, or a function that makes one"
MISSING = object()
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

    Its message has the traceback, from the user's first frame on; for an error of mongoq, which says itself what to do,
    it has the line of the user that called mongoq.

    Args:
        what: the beginning of the sentence, up to "raised".
        error: the error.

    Attributes:
        lasting: True if the server has refused the user, as it would again.
    """

    def __init__(self, what: str, error: BaseException) -> None:
        self.lasting = isinstance(error, AuthenticationFailed) or is_refused_user(error)
        is_missing = self.lasting or isinstance(error, ServerUnavailable)
        self.exit_code = UNAVAILABLE if is_missing else OPERATION_FAILED  # type: ignore[misc]  # its own
        # An error of mongoq with an error of the user as its cause is another one too: its traceback shows the cause.
        if isinstance(error, MongoqError) and isinstance(error.__cause__, PyMongoError | None):
            advice = hide_credentials(str(error))
        elif isinstance(error, OperationFailure) and is_refused_user(error):
            advice = describe_driver_error(error)
        else:
            super().__init__(f"{what} raised an error:\n\n{_format_user_traceback(error)}")
            return
        for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
            path = Path(frame.f_code.co_filename)
            if not str(path).startswith((*CALLING_FILES, DRIVER_FILES)):
                folder = Path.cwd()
                what = f"{path.relative_to(folder) if path.is_relative_to(folder) else path}:{number}"
                break
        super().__init__(f"{what}: {advice}")


def _format_user_traceback(error: BaseException) -> str:
    """Return an error as Python prints it, without the frames of mongoq and of the import system.

    Users and passwords of connection strings are masked, in lines of source code too.
    """
    shown = traceback.TracebackException.from_exception(error)
    following, seen = [shown], set[int]()
    while following:
        one = following.pop()
        if id(one) not in seen:
            seen.add(id(one))
            users = [frame for frame in one.stack if not frame.filename.startswith(CALLING_FILES)]
            one.stack = traceback.StackSummary.from_list(users)
            following += [linked for linked in (one.__cause__, one.__context__) if linked is not None]
    return printable(hide_credentials("".join(shown.format()))).rstrip()


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Raise ``TargetFailed`` for an error of the user's code in the block; signals go through.

    ``SystemExit`` is such an error too: the command would end without a word.
    """
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise TargetFailed(what, error) from None


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
        with blaming(path):  # a property or a ``__getattr__`` of the user
            found = getattr(found, step, MISSING)
        if found is MISSING:
            place = getattr(module, "__file__", None) or "a folder without __init__.py"
            where = f"module {module.__name__!r} ({place}) was imported, and has no {name!r} in it"
            raise TargetUnusable(where + _list_contents(module, name))
    if not isinstance(found, KINDS) and (isinstance(found, type) or not callable(found)):
        kind = f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise TargetUnusable(f"{path} is {kind}, and not {WANTED}{_list_contents(module, name)}")
    return found


def make(path: str, function: Callable[..., Any], connect: Callable[[Any], Any], loop: asyncio.Runner) -> Any:
    """Call the function of the user that makes a worker or a pipeline, and return that.

    It has no argument that it needs, or the broker alone. A coroutine function, and one that takes an ``AsyncBroker``,
    are called within the running event loop.

    Raises:
        TargetUnusable: it needs other arguments, or has made something else.
        TargetFailed: it raised an error.
    """
    is_async, kind = inspect.iscoroutinefunction(function), None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function in C may not know its parameters
        parameters = {}.values()
    variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    needed = [one for one in parameters if one.default is inspect.Parameter.empty and one.kind not in variadic]
    call: Callable[[], Any] = function
    if needed:
        parameter, kind = needed[0], _annotated_broker(needed[0])
        # A handler takes one argument as well: called with a broker instead of a payload, it would do anything.
        if len(needed) > 1 or not (parameter.name == "broker" or kind):
            raise TargetUnusable(
                f"{path} is a function of ({', '.join(one.name for one in needed)}); a function that makes a worker "
                "has no argument that it needs, or the broker alone: name it broker, or annotate it with "
                "mongoq.Broker or mongoq.AsyncBroker"
            )
        kind = kind or (AsyncBroker if is_async else Broker)
        broker = connect(kind)
        is_named = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        call = partial(function, **{parameter.name: broker}) if is_named else partial(function, broker)
    what = f"the function {path}"

    async def resolve(made: Any = MISSING) -> Any:
        with blaming(what):
            made = call() if made is MISSING else made
            return await made if inspect.isawaitable(made) else made

    if is_async or kind is AsyncBroker:
        made = loop.run(resolve())
    else:
        with blaming(what):
            made = call()
        if inspect.isawaitable(made):  # a plain function, such as a lambda, around a coroutine function
            made = loop.run(resolve(made))
    if not isinstance(made, KINDS):
        found = "None" if made is None else f"an object of type {type(made).__name__}"
        raise TargetUnusable(f"{what} returned {found}, and not a Worker, an AsyncWorker or a Pipeline")
    return made


def _annotated_broker(parameter: inspect.Parameter) -> type[Broker] | type[AsyncBroker] | None:
    """Return the kind of broker that the annotation of a parameter names, as a class or as text."""
    annotation = parameter.annotation
    name = annotation.rpartition(".")[2] if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return {"Broker": Broker, "AsyncBroker": AsyncBroker}.get(name)


def has_coroutines(pipeline: Pipeline) -> bool:
    """Return whether a handler of a pipeline must run with asyncio."""
    checks = inspect.iscoroutinefunction, inspect.isasyncgenfunction
    parts: tuple[Any, ...] = (*pipeline.graph.stages, *pipeline.graph.sources)
    return any(is_function(check, part.handler) for part in parts for check in checks)


# --- the module ------------------------------------------------------------------------------------


def _import(name: str) -> ModuleType:
    if "/" in name or name.startswith(".") or name.endswith(".py"):
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise TargetUnusable(f"{name!r} is the path of a file; name a module as import does: {dotted}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with blaming(f"module {name!r}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if name != missing and not name.startswith(f"{missing}."):
                raise  # the module was there, and imports another one
    parent, _, own = missing.rpartition(".")
    package = sys.modules.get(parent)
    if package is None:
        where, folders = f"there is no module {missing!r} in {folder}, nor elsewhere on sys.path", [folder]
    else:
        folders = list(getattr(package, "__path__", []))
        place = getattr(package, "__file__", None) or ", ".join(folders)
        where = f"module {parent!r} ({place}) has no module {own!r} in it"
    found = [one.name for one in pkgutil.iter_modules(folders)]
    raise TargetUnusable(where + _list_names("it has" if package else "the folder has", own, found))


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
