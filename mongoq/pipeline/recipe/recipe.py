"""Reader of recipes: pipelines as plain data, in a mapping or a file of JSON or YAML.

All faults of a recipe are reported at once. Its size is limited, so that any file is safe to read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from mongoq.data.outcomes import Drop, Exponential, Fixed, Linear, Move, RetryPolicy
from mongoq.errors import ArgumentInvalid, GraphInvalid
from mongoq.pipeline.checks import faults
from mongoq.pipeline.graph.graph import (
    DEFAULT_FRAME_BATCH,
    KEEP_SEQUENCE,
    STAGE_OPTIONS,
    Frame,
    Graph,
    Join,
    Source,
    Stage,
)
from mongoq.pipeline.graph.handlers import ImportFailed, handler_name, import_object, in_a_line, names

T = TypeVar("T")
FILE_BYTES = 1024 * 1024
MAX_VALUES = 20_000
"""Values of a recipe, at most; each is counted at every place where it occurs: a few YAML aliases make billions."""
MAX_TEXT_LENGTH = 1024 * 1024
"""Characters and bytes of all values and keys, at most, counted in the same way."""
MAX_STAGES = 1_000
"""Entries of ``stages`` and of ``sources``, at most: checks compare stages with each other."""
NESTING_LIMIT = 60
INTEGER_BITS = 1024
"""Bits of an integer, at most: Python refuses to write very large integers in digits, so no error could show them."""
TOO_MANY = f"more than {MAX_VALUES:,} values, aliases counted as what they stand for; write less"
TOO_DEEP = f"nested deeper than {NESTING_LIMIT} levels"


class TooMuch(Exception):
    """The recipe is larger than its limits."""


def check_size(content: Any) -> None:
    """Raise ``TooMuch`` if the content is larger than a recipe may be."""
    # By identity: an alias of YAML is the same object at each place, and measuring it again would take exponential
    # time.
    known: dict[int, tuple[int, int, int]] = {}

    def measure(value: Any, level: int) -> tuple[int, int, int]:
        """Return the number of values, itself and all inside, the depth of their nesting, and the length of texts."""
        if level > NESTING_LIMIT:
            raise TooMuch(TOO_DEEP)
        if isinstance(value, int) and value.bit_length() > INTEGER_BITS:
            raise TooMuch(f"an integer of more than {INTEGER_BITS:,} bits; write a smaller one")
        if not isinstance(value, Mapping | list | tuple):
            return 1, 1, len(value) if isinstance(value, str | bytes) else 0
        if id(value) not in known:
            keys = [key for key in value if isinstance(key, str)] if isinstance(value, Mapping) else []
            parts = value.values() if isinstance(value, Mapping) else value
            sizes = [(0, 0, sum(map(len, keys))), *(measure(part, level + 1) for part in parts)]
            values, levels, texts = zip(*sizes, strict=True)
            known[id(value)] = 1 + sum(values), 1 + max(levels), sum(texts)
        return known[id(value)]

    values, levels, text = measure(content, 1)
    if values > MAX_VALUES:
        raise TooMuch(TOO_MANY)
    if levels > NESTING_LIMIT:
        raise TooMuch(TOO_DEEP)
    if text > MAX_TEXT_LENGTH:
        raise TooMuch(f"more than {MAX_TEXT_LENGTH:,} characters, aliases counted as what they stand for; write less")
    for part in ("stages", "sources"):
        listed = content.get(part) if isinstance(content, Mapping) else None
        if isinstance(listed, list | tuple) and len(listed) > MAX_STAGES:
            raise TooMuch(f"{len(listed):,} {part}, and {MAX_STAGES:,} is the limit; make several pipelines of it")


def recipe_content(recipe: Any) -> tuple[str, Any]:
    """Return a title for errors until the recipe's name is known, and the content of the recipe.

    Raises:
        GraphInvalid: the recipe cannot be read, or is too large.
        ArgumentInvalid: the argument is no recipe, or PyYAML is not installed.
        OSError: the file cannot be opened.
    """
    if not isinstance(recipe, Mapping | str | PathLike):
        raise ArgumentInvalid("recipe", f"a mapping, or the path of a file, not {type(recipe).__name__}")
    title = "recipe" if isinstance(recipe, Mapping) else Path(recipe).name
    try:
        content = recipe if isinstance(recipe, Mapping) else _read_file(Path(recipe))
        check_size(content)
    except TooMuch as error:
        raise GraphInvalid(title, [f"recipe: {error}"]) from None
    return title, content


def _read_file(path: Path) -> Any:
    suffix = path.suffix.lower()
    if suffix not in (".json", ".yaml", ".yml"):
        raise ArgumentInvalid("recipe", f"a file whose name ends in .yaml, .yml or .json, not {path.name!r:.150}")
    load: Callable[[bytes], Any] = partial(json.loads, object_pairs_hook=without_doubles)
    if suffix != ".json":
        try:
            from mongoq.pipeline.recipe.yaml_text import load
        except ModuleNotFoundError as error:
            if error.name != "yaml":
                raise
            hint = "YAML needs PyYAML; install mongoq-driver[yaml], or write the recipe as JSON"
            raise ArgumentInvalid("recipe", hint) from error
    # One byte more than the limit: enough to see that the file is too large, without reading all of it.
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES + 1)
    except ValueError as error:
        raise ArgumentInvalid("recipe", f"no path of a file: {error}") from error
    if len(text) > FILE_BYTES:
        raise TooMuch(f"more than {FILE_BYTES:,} bytes; that is no recipe, or several")
    try:
        return load(text)
    except TooMuch:
        raise
    except RecursionError:
        raise TooMuch(TOO_DEEP) from None
    except Exception as error:  # PyYAML raises many kinds of errors, for example for an impossible date
        reason = f"{type(error).__name__}: {in_a_line(error)}"
        raise GraphInvalid(path.name, [f"recipe: it cannot be read: {reason}"]) from error


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the mapping of a JSON object; raises ``ValueError`` for a duplicate key."""
    whole: dict[str, Any] = {}
    for key, value in pairs:
        if key in whole:
            raise ValueError(f"the key {key!r:.150} is given twice")
        whole[key] = value
    return whole


def _names_of_fields(kind: Any, *, without: Sequence[str] = ()) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind) if each.name not in without)


PIPELINE = ("name", "errors", "inputs", "outputs", "trail", "log_errors", "sources", "stages")
SOURCE = ("name", "to", "handler", *_names_of_fields(Source, without=("name", "target", "handler")))
STAGE = (
    *("name", "from", "to", "handler", "model", "join", "frame", "where", "otherwise", "delivery", "format", "none"),
    *("sequence", "errors", "shared", *STAGE_OPTIONS),
)
MOVE = ("to", "delay", "priority", "headers", "expires")
POLICIES: dict[str, type[RetryPolicy]] = {"fixed": Fixed, "linear": Linear, "exponential": Exponential}
TYPES: dict[str, tuple[Any, str]] = {
    "handler": (str, "a valid string"),
    "sources": (list | tuple, "a valid list"),
    "stages": (list | tuple, "a valid list"),
}
"""Types of the keys that the reader itself works with; the checks of the graph find other wrong values."""


def graph_of(recipe: Mapping[str, Any] | str | PathLike[str]) -> Graph:
    """Return the graph that a recipe describes, checked; its handlers and models are imported.

    Raises:
        GraphInvalid: the recipe has faults; the error lists all of them.
        ArgumentInvalid: the argument is no recipe, or PyYAML is not installed.
        OSError: the file cannot be opened.
    """
    title, content = recipe_content(recipe)
    reading = _Reading()
    graph = reading.graph(content)
    if graph is None:
        raise GraphInvalid(title, reading.faults)
    # Faults of the text come first, then those of the graph with stand-ins: the user mends all in one go.
    all_faults = [*reading.faults, *faults(graph)]
    if all_faults:
        raise GraphInvalid(graph.name, all_faults)
    return graph


class _Reading:
    """Reader of one recipe: collects faults, and puts a stand-in in place of each wrong value.

    A stand-in causes no further faults, so that the rest of the recipe is checked as well.

    Attributes:
        faults: faults found so far.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []

    def graph(self, content: Any) -> Graph | None:
        """Return the graph, or ``None`` when too little of it is known to check it."""
        whole = self._part(content, "recipe", PIPELINE, required=("name", "stages"), name="recipe", stages=[])
        if whole is None or (self.faults and not whole["stages"]):
            return None
        entries = whole.get("sources", ())
        sources = [part for place, entry in enumerate(entries) if (part := self._source(entry, place)) is not None]
        stages = [
            stage for place, entry in enumerate(whole["stages"]) if (stage := self._stage(entry, place)) is not None
        ]
        # Without a stage or source, the checks of the graph would report faults that are not there.
        if len(stages) < len(whole["stages"]) or len(sources) < len(entries):
            return None
        inputs = None if whole.get("inputs") is None else names(whole["inputs"])
        outputs = names(whole.get("outputs", ()))
        options: dict[str, Any] = {key: whole[key] for key in ("trail", "log_errors") if key in whole}
        options["sources"] = tuple(sources)
        return Graph(whole["name"], tuple(stages), whole.get("errors"), inputs, outputs, **options)

    def _part(
        self, entry: Any, at: str, keys: Sequence[str], *, required: Sequence[str] = (), **stand_ins: Any
    ) -> dict[str, Any] | None:
        """Return a part without its wrong keys; ``None`` if a required key is wrong and has no stand-in."""
        if not isinstance(entry, Mapping):
            self.faults.append(f"{at}: a mapping, not {type(entry).__name__}")
            return None
        part = {}
        for key in keys:
            kind, wanted = TYPES.get(key, (object, ""))
            if key in entry and isinstance(entry[key], kind):
                part[key] = entry[key]
            elif key in entry:
                self.faults.append(f"{at}: {key}: Input should be {wanted}")
            elif key in required:
                self.faults.append(f"{at}: {key!r} is missing")
        for key in entry:
            if not isinstance(key, str):
                self.faults.append(f"{at}: {key!r:.60}: Keys should be strings")
            elif key not in keys:
                self.faults.append(f"{at}: unknown key {key!r:.60}; it may have {', '.join(keys)}")
        part = stand_ins | part
        return None if any(key not in part for key in required) else part

    def _source(self, entry: Any, place: int) -> Source | None:
        at = _place("sources", place, entry)
        part = self._part(entry, at, SOURCE, required=("to", "handler"), handler=SOURCE_STAND_IN)
        if part is None:
            return None
        handler = self._import(part.pop("handler"), f"{at}: handler", _source_stand_in)
        default = at if handler is _source_stand_in else handler_name(handler)
        name, target = part.pop("name", None), part.pop("to")
        return Source(default if name is None else name, target, handler, **part)

    def _stage(self, entry: Any, place: int) -> Stage | None:
        at = _place("stages", place, entry)
        part = self._part(entry, at, STAGE, required=("handler",), handler=STAND_IN)
        if part is None:
            return None
        handler = self._import(part.pop("handler"), f"{at}: handler", _stand_in)
        default = at if handler is _stand_in else handler_name(handler)
        name, sources, targets = part.pop("name", None), part.pop("from", ()), part.pop("to", None)
        has_target = "to" in entry
        readers: dict[str, Callable[[Any, str], Any]] = {
            "model": self._model,
            "join": self._join,
            "frame": lambda value, at: self._make(Frame, value, at),
            "otherwise": self._otherwise,
            "sequence": lambda value, at: value if value == KEEP_SEQUENCE else self._import(value, at, None),
            "retry": self._retry,
            "success_on": lambda value, at: tuple(self._import(path, at, Exception) for path in names(value)),
        }
        for key, read in readers.items():
            # ``null`` stands for the default; only ``success_on`` has another one.
            if key in part and (part[key] is not None or key == "success_on"):
                part[key] = read(part[key], f"{at}: {key}")
        options = {option: part.pop(option) for option in STAGE_OPTIONS if option in part}
        if part.get("format") is not None:
            options.setdefault("batch", DEFAULT_FRAME_BATCH)
        return Stage(
            name=default if name is None else name,
            sources=names(sources),
            targets=names(targets) or (targets,) if has_target else (),
            handler=handler,
            options=options,
            **part,
        )

    def _model(self, name: Any, at: str) -> Any:
        if isinstance(name, list):
            return [None if part is None else self._model(part, f"{at}[{place}]") for place, part in enumerate(name)]
        if isinstance(name, str):
            return self._import(name, at, None)
        self.faults.append(f"{at}: where it is imported from, such as 'app.models:Flight', not {name!r:.60}")
        return None

    def _join(self, entry: Any, at: str) -> Join | None:
        # YAML 1.1 reads on without quotes as True.
        if isinstance(entry, Mapping) and True in entry and "on" not in entry:
            entry = {"on" if key is True else key: value for key, value in entry.items()}
        return self._make(Join, entry, at, required=("on",), on=None)

    def _make(self, kind: type[T], entry: Any, at: str, *, required: Sequence[str] = (), **stand_ins: Any) -> T | None:
        part = self._part(entry, at, _names_of_fields(kind), required=required, **stand_ins)
        return None if part is None else kind(**part)

    def _import(self, path: Any, at: str, stand_in: Any) -> Any:
        try:
            return import_object(path)
        except ImportFailed as failed:
            self.faults.append(f"{at}: {failed}")
            return stand_in

    def _otherwise(self, entry: Any, at: str) -> Drop | Move:
        part = None
        if isinstance(entry, Mapping) and set(entry) == {"move"}:
            part = self._part(entry["move"], f"{at}.move", MOVE, required=("to",))
        elif entry != "drop":
            self.faults.append(f"{at}: 'drop', or {{'move': {{'to': …}}}}, not {entry!r:.60}")
        return Drop() if part is None else Move(**part)

    def _retry(self, entry: Any, at: str) -> RetryPolicy | None:
        kind = next(iter(entry)) if isinstance(entry, Mapping) and len(entry) == 1 else None
        if kind not in POLICIES:
            self.faults.append(f"{at}: {{kind: {{…}}}} with one of {', '.join(POLICIES)}, not {entry!r:.60}")
            return None
        try:
            return self._make(POLICIES[kind], {} if entry[kind] is None else entry[kind], f"{at}.{kind}")
        except ArgumentInvalid as invalid:
            self.faults.append(f"{at}.{kind}: {in_a_line(invalid)}")
            return None


def _place(kind: str, place: int, entry: Any) -> str:
    """Return the name that faults use for an entry of a list."""
    name = entry.get("name") if isinstance(entry, Mapping) else None
    return f"{kind}[{place}] ({name!r:.150})" if isinstance(name, str) else f"{kind}[{place}]"


def _stand_in(_payload: Any, job: Any) -> Any:
    """Stand-in for a handler that could not be imported, so that the rest of the recipe is checked."""
    return job


def _source_stand_in(_position: Any) -> Iterator[Any]:
    """Stand-in for the handler of a source."""
    yield from ()


SOURCE_STAND_IN = f"{__name__}:{_source_stand_in.__name__}"
STAND_IN = f"{__name__}:{_stand_in.__name__}"
