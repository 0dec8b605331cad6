"""Reader of recipes: pipelines as plain data, in a mapping or a file of JSON or YAML; it reports all faults at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from mongoq.data.outcomes import Drop, Exponential, Fixed, Linear, Move, RetryPolicy
from mongoq.errors import ArgumentInvalid, GraphInvalid
from mongoq.pipeline.checks import faults, no_records
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
NESTING_LIMIT = 60
INTEGER_BITS = 1024
"""Bits of an integer, at most: Python refuses to write very large integers in digits, so no error could show them."""
TOO_DEEP = f"nested deeper than {NESTING_LIMIT} levels"


class _TooMuch(Exception):
    """The recipe is larger than its limits."""


def _check_size(content: Any) -> None:
    """Raise ``_TooMuch`` if the content is larger than a recipe may be; also if it contains itself."""
    waiting, number = [(content, 1)], 0
    while waiting:
        value, level = waiting.pop()
        number += 1
        if number > MAX_VALUES:
            raise _TooMuch(f"more than {MAX_VALUES:,} values, aliases counted as what they stand for; write less")
        if level > NESTING_LIMIT:
            raise _TooMuch(TOO_DEEP)
        if isinstance(value, int) and value.bit_length() > INTEGER_BITS:
            raise _TooMuch(f"an integer of more than {INTEGER_BITS:,} bits; write a smaller one")
        if isinstance(value, Mapping | list | tuple):
            parts = value.values() if isinstance(value, Mapping) else value
            waiting += [(part, level + 1) for part in parts]


def _read_file(path: Path) -> Any:
    suffix = path.suffix.lower()
    if suffix not in (".json", ".yaml", ".yml"):
        raise ArgumentInvalid("recipe", f"a file whose name ends in .yaml, .yml or .json, not {path.name!r:.150}")
    load = partial(json.loads, object_pairs_hook=_make_object) if suffix == ".json" else _make_yaml_loader()
    # One byte more than the limit: enough to see that the file is too large, without reading all of it.
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES + 1)
    except ValueError as error:
        raise ArgumentInvalid("recipe", f"no path of a file: {error}") from error
    if len(text) > FILE_BYTES:
        raise _TooMuch(f"more than {FILE_BYTES:,} bytes; that is no recipe, or several")
    try:
        return load(text)
    except RecursionError:
        raise _TooMuch(TOO_DEEP) from None
    except Exception as error:  # PyYAML raises many kinds of errors, for example for an impossible date
        reason = f"{type(error).__name__}: {in_a_line(error)}"
        raise GraphInvalid(path.name, [f"recipe: it cannot be read: {reason}"]) from error


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the mapping of a JSON object; raises ``ValueError`` for a duplicate key."""
    whole: dict[str, Any] = {}
    for key, value in pairs:
        if key in whole:
            raise ValueError(f"the key {key!r:.150} is given twice")
        whole[key] = value
    return whole


def _make_yaml_loader() -> Callable[[bytes], Any]:
    """Return a function that reads YAML: plain values only, no duplicate keys, no merge keys, no numbers in base 60."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        hint = "YAML needs PyYAML; install mongoq-driver[yaml], or write the recipe as JSON"
        raise ArgumentInvalid("recipe", hint) from error

    refusal = yaml.constructor.ConstructorError

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # it carries no types
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise refusal(None, None, "merge keys (<<) are not taken; write the keys out", node.start_mark)
            mapping = super().construct_mapping(node, deep)
            if len(mapping) < len(node.value):
                # By value: keys may be written differently and be the same, such as ``on`` and ``yes``.
                keys = [self.construct_object(key) for key, _ in node.value]
                twice = next(key for place, key in enumerate(keys) if key in keys[:place])
                raise refusal(None, None, f"the key {twice!r:.150} is given twice", node.start_mark)
            return mapping

        def construct_number(self, node: Any) -> int | float:
            if ":" in self.construct_scalar(node):
                hint = "numbers in base 60, such as 1:30, are not taken; put them in quotes"
                raise refusal(None, None, hint, node.start_mark)
            is_int = node.tag.endswith("int")
            number: int | float = self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)
            return number

    for kind in ("int", "float"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", Loader.construct_number)
    return partial(yaml.load, Loader=Loader)


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
    if not isinstance(recipe, Mapping | str | PathLike):
        raise ArgumentInvalid("recipe", f"a mapping, or the path of a file, not {type(recipe).__name__}")
    # A title for errors until the recipe's name is known.
    title = "recipe" if isinstance(recipe, Mapping) else Path(recipe).name
    try:
        content = recipe if isinstance(recipe, Mapping) else _read_file(Path(recipe))
        _check_size(content)
    except _TooMuch as error:
        raise GraphInvalid(title, [f"recipe: {error}"]) from None
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
        handler = self._import(part.pop("handler"), f"{at}: handler", no_records)
        default = at if handler is no_records else handler_name(handler)
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


SOURCE_STAND_IN = f"{no_records.__module__}:{no_records.__name__}"
STAND_IN = f"{__name__}:{_stand_in.__name__}"
