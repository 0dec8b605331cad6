"""Generates the sync shell, mongoq/sync, from mongoq/aio; core, driver and worker of threads likewise.

    python scripts/unasync.py            write mongoq/sync, mongoq/core_threads, mongoq/drivers/threads, …
    python scripts/unasync.py --check    write nothing; exit 1 and name what is stale

Code is translated token by token: `async` and `await` go, names are replaced after the tables
below. Docstrings, other strings and comments go through the same tables as whole words, and lose
`await` and `async` where they show code. A name with `Async` in it, or an `asyncio` function, that
no table knows is an error rather than a guess.

Where the two shells must differ, a comment in the asyncio shell says so:

    loop = asyncio.get_running_loop()  # async only
    # sync only: lock = threading.Lock()

The first drops the statement it ends (with its whole block, if it is the head of one), the second
becomes the statement it holds.

Of the core (``SHARED``), only what differs is generated: a definition that has `async` in it, or uses one
that has. Everything else, classes, errors and state above all, exists once: the twin imports it.
"""

from __future__ import annotations

import argparse
import ast
import io
import keyword
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREES = {
    "mongoq/core": "mongoq/core_threads",
    "mongoq/aio": "mongoq/sync",
    "mongoq/drivers/aio": "mongoq/drivers/threads",
    "mongoq/worker/aio": "mongoq/worker/threads",
    "mongoq/telemetry/aio": "mongoq/telemetry/threads",
}
"""What is generated, by what it is generated from."""
SHARED = "mongoq/core"
"""The tree whose twin shares with it what does not differ."""
ASYNC_TYPES = frozenset({"AsyncGenerator", "AsyncIterable", "AsyncIterator", "Awaitable", "Coroutine"})

NAMES = {
    "AsyncBroker": "Broker",
    "AsyncContents": "Contents",
    "AsyncDeadQueue": "DeadQueue",
    "AsyncInspection": "Inspection",
    "AsyncItemSelection": "ItemSelection",
    "AsyncQueue": "Queue",
    "AsyncReserved": "Reserved",
    "AsyncRunner": "Runner",
    "AsyncSchedules": "Schedules",
    "AsyncTransaction": "Transaction",
    "AsyncEngine": "Engine",
    "AsyncSourceRunner": "SourceRunner",
    "AsyncJob": "Job",
    "AsyncSettler": "Settler",
    "AsyncItemRunner": "ItemRunner",
    "AsyncConsumerLoop": "ConsumerLoop",
    "AsyncWorker": "Worker",
    "AioExecutor": "ThreadExecutor",
    "AioDriver": "ThreadDriver",
    "AioGroupCommit": "ThreadGroupCommit",
    "AioPerformer": "ThreadPerformer",
    "connect_async": "connect",
    # the driver's
    "AsyncClientSession": "ClientSession",
    "AsyncCollection": "Collection",
    "AsyncCursor": "Cursor",
    "AsyncDatabase": "Database",
    "AsyncMongoClient": "MongoClient",
    # the standard library's
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncContextManager": "ContextManager",
    "AsyncExitStack": "ExitStack",
    "AsyncGenerator": "Generator",
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "aclosing": "closing",
    "aiter": "iter",
    "anext": "next",
    "asynccontextmanager": "contextmanager",
}

# The longest match wins, and covers what lies below it: mongoq.aio.queue becomes mongoq.sync.queue.
DOTTED = {
    "mongoq.aio": "mongoq.sync",
    "mongoq.drivers.aio": "mongoq.drivers.threads",
    "mongoq.drivers.group_commit_aio": "mongoq.drivers.group_commit_threads",
    "mongoq.drivers.performer_aio": "mongoq.drivers.performer_threads",
    "mongoq.worker.aio": "mongoq.worker.threads",
    "mongoq.telemetry.aio": "mongoq.telemetry.threads",
    "pymongo.asynchronous": "pymongo.synchronous",
    "anyio.sleep": "time.sleep",
    "asyncio.sleep": "time.sleep",
    "asyncio.Event": "threading.Event",
    "asyncio.Lock": "threading.Lock",
}

# Replaced in docstrings, other strings and comments, before the names.
PHRASES = {
    "asyncio API": "sync API",
    "asyncio shell": "sync shell",
    "from asyncio": "from sync code",
}

# Libraries of the async side: an import of one becomes imports of what its functions became.
ASYNC_LIBRARIES = ("anyio", "asyncio")

ASYNC_ONLY = re.compile(r"#\s*async only\b")
SYNC_ONLY = re.compile(r"#\s*sync only:\s?(?P<code>.*)")

_GENERIC = re.compile(r"(?<![\w.])(?P<module>(?:\w+\.)*)(?P<type>AsyncGenerator|Awaitable|Coroutine)\[")
_FSTRING_STARTS = {getattr(tokenize, name, -1) for name in ("FSTRING_START", "TSTRING_START")}
_FSTRING_ENDS = {getattr(tokenize, name, -1) for name in ("FSTRING_END", "TSTRING_END")}


class Untranslatable(Exception):
    """The asyncio shell holds something that has no counterpart in the tables."""

    def __init__(self, name: str, line: int, reason: str) -> None:
        super().__init__(f"{name}:{line}: {reason}")
        self.name = name
        self.line = line


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the source, with its place in the text; f-strings are one piece."""

    kind: int
    text: str
    start: int
    end: int
    line: int

    @property
    def is_name(self) -> bool:
        return self.kind == tokenize.NAME and not keyword.iskeyword(self.text)

    @property
    def is_text(self) -> bool:
        return self.kind in {tokenize.STRING, tokenize.COMMENT}


@dataclass(frozen=True, slots=True)
class Edit:
    """Puts `text` in the place of source[start:end]."""

    start: int
    end: int
    text: str


def translate(source: str, name: str = "<source>") -> str:
    """The sync counterpart of `source`, not yet formatted; `name` is for messages."""
    source = _translate_generics(_apply_markers(source, name))
    tokens = _tokens(source)
    edits = [
        *_keyword_edits(source, tokens),
        *_name_edits(tokens, name),
        *_import_edits(tokens, name),
        *(Edit(token.start, token.end, translate_text(token.text)) for token in tokens if token.is_text),
    ]
    return _apply(source, edits)


def translate_text(text: str) -> str:
    """The counterpart of a docstring, another string or a comment."""
    text = _translate_generics(text)
    for phrase, replacement in PHRASES.items():
        text = re.sub(rf"\b{re.escape(phrase)}\b", replacement, text)
    text = re.sub(r"\basync (?=(?:def|for|with)\b)", "", text)
    # Code only: `await queue.pop()`, but not "callers await the reply".
    text = re.sub(r"\bawait (?=[A-Za-z_]\w*(?:\.\w|[(\[]))", "", text)
    text = re.sub(r"(?<![\w.])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", lambda match: _dotted(match[0]), text)
    return re.sub(r"[A-Za-z_]\w*", lambda match: NAMES.get(match[0], match[0]), text)


def render(source: str, name: str, target: str, root: Path = ROOT) -> str:
    """The finished text of the file `target` made of the file `name`: translated, with its header, formatted."""
    header = f"# Generated from {name} by scripts/unasync.py. Do not edit.\n"
    text = header + translate(source, name)
    place = ["--stdin-filename", target, "-"]
    # Imports may have become unused (Awaitable), or be in another order.
    text = _ruff(["check", "--quiet", "--exit-zero", "--fix", "--select", "I,F401", *place], text, root)
    return _ruff(["format", "--quiet", *place], text, root)


def generate(root: Path = ROOT) -> dict[Path, str]:
    """What the generated trees should hold: a text for every file of what they are generated from."""
    generated = {}
    sources = {
        f"{origin}/{path.relative_to(root / origin).as_posix()}": path.read_text(encoding="utf-8")
        for origin in TREES
        for path in sorted((root / origin).rglob("*.py"))
    }
    twins = Twins(sources)
    for origin, target in TREES.items():
        for name in sources:
            if not name.startswith(f"{origin}/") or (origin == SHARED and not twins.has_twin(name)):
                continue
            inside = name.removeprefix(f"{origin}/")
            generated[root / target / inside] = render(twins.split(name), name, f"{target}/{inside}", root)
    return generated


# --- what twins share ----------------------------------------------------------------------------


class Twins:
    """Which names of the shared tree have a twin: those that are async, or use one that is.

    Args:
        sources: the texts of all files that are generated from, by path.
    """

    def __init__(self, sources: dict[str, str]) -> None:
        self._texts = sources
        self._trees = {name: ast.parse(text) for name, text in sources.items()}
        self._modules = {_module(name): name for name in sources if name.startswith(f"{SHARED}/")}
        self._imports = {name: self._find_imports(tree) for name, tree in self._trees.items()}
        self._definitions = {name: _definitions(self._trees[name]) for name in self._modules.values()}
        self._twinned: set[tuple[str, str]] = set()
        while self._spread():
            pass
        self._asked = self._find_asked()

    def has_twin(self, name: str) -> bool:
        """Return whether a module of the shared tree has a twin; packages have one."""
        return name.endswith("__init__.py") or any(module == name for module, _ in self._twinned)

    def is_twinned(self, module: str, attribute: str) -> bool:
        """Return whether a name of a module, by its dotted name, differs between the twins."""
        name = self._modules.get(module)
        return name is not None and ((name, attribute) in self._twinned or self._is_twinned_import(name, attribute))

    def split(self, name: str) -> str:
        """Return the part of a module that its twin is made of, with its imports from the twins of others."""
        lines = self._texts[name].splitlines(keepends=True)
        own, shared = set[str](), set[str]()
        dropped: set[int] = set()
        for statement in self._trees[name].body if name.startswith(f"{SHARED}/") else ():
            names = _defined(statement)
            if names and not any((name, each) in self._twinned for each in names):
                shared |= names
                dropped |= _lines_with_docstring(self._trees[name], statement, lines)
            else:
                own |= _used(statement)
        lines = self._replace_imports(name, lines)
        kept = [line for number, line in enumerate(lines, start=1) if number not in dropped]
        asked = self._asked.get(_module(name), set())
        # As ``a as a``, an import is an export as well.
        wanted = [f"{each} as {each}" if each in asked else each for each in sorted(shared & (own | asked))]
        if wanted:
            place = next(
                n for n, line in enumerate(kept) if line.startswith(("import ", "from ")) and "__future__" not in line
            )
            kept.insert(place, f"from {_module(name)} import {', '.join(wanted)}\n")
        return "".join(kept)

    def _find_imports(self, tree: ast.Module) -> dict[str, tuple[str, str | None]]:
        """Return what each imported name stands for: a module, or a name of a module."""
        found: dict[str, tuple[str, str | None]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found[alias.asname or alias.name] = (
                        (inner, None) if inner in self._modules else (node.module, alias.name)
                    )
        return found

    def _is_twinned_import(self, name: str, used: str) -> bool:
        module, attribute = self._imports[name].get(used, ("", None))
        return attribute is not None and self.is_twinned(module, attribute)

    def _spread(self) -> bool:
        """Add the definitions that use a twinned name; return whether there were any."""
        found = {
            (name, each)
            for name, definitions in self._definitions.items()
            for each, statement in definitions.items()
            if (name, each) not in self._twinned and self._differs(name, statement)
        }
        self._twinned |= found
        return bool(found)

    def _differs(self, name: str, statement: ast.stmt) -> bool:
        first, last = _first_line(statement), statement.end_lineno or statement.lineno
        text = "".join(self._texts[name].splitlines(keepends=True)[first - 1 : last])
        if re.search(r"#\s*(a?sync) only\b", text):
            return True
        for node in ast.walk(statement):
            if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
                return True
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module, attribute = self._imports[name].get(node.value.id, ("", ""))
                if attribute is None and self.is_twinned(module, node.attr):
                    return True
        return any(
            used in ASYNC_TYPES or (name, used) in self._twinned or self._is_twinned_import(name, used)
            for used in _used(statement)
        )

    def _find_asked(self) -> dict[str, set[str]]:
        """Return the names that are asked of modules, by the modules: as ``settle.commit``."""
        asked: dict[str, set[str]] = {}
        for name, tree in self._trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    module, attribute = self._imports[name].get(node.value.id, ("", ""))
                    if attribute is None:
                        asked.setdefault(module, set()).add(node.attr)
        return asked

    def _replace_imports(self, name: str, lines: list[str]) -> list[str]:
        """Write each import from the shared tree as two: of what has a twin, and of what has none."""
        lines = list(lines)
        for node in ast.walk(self._trees[name]):
            if (
                not isinstance(node, ast.ImportFrom)
                or node.module is None
                or not node.module.startswith(_module(SHARED))
            ):
                continue
            twinned: list[str] = []
            plain: list[str] = []
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_twin = (
                    self.has_twin(self._modules[inner])
                    if inner in self._modules
                    else self.is_twinned(node.module, alias.name)
                )
                (twinned if is_twin else plain).append(ast.unparse(alias))
            indent = " " * node.col_offset
            target = node.module.replace(_module(SHARED), _module(TREES[SHARED]), 1)
            texts = [
                f"{indent}from {module} import {', '.join(names)}\n"
                for module, names in ((target, twinned), (node.module, plain))
                if names
            ]
            last = node.end_lineno or node.lineno
            lines[node.lineno - 1 : last] = ["".join(texts), *[""] * (last - node.lineno)]
        return lines


def _module(name: str) -> str:
    """The dotted name of a file or folder."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _defined(statement: ast.stmt) -> set[str]:
    """The names that a statement of a module defines; those of imports do not count."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)} - {"__all__"}
    return set()


def _definitions(tree: ast.Module) -> dict[str, ast.stmt]:
    return {name: statement for statement in tree.body for name in _defined(statement)}


def _used(statement: ast.AST) -> set[str]:
    """The names of the module that a statement uses, or exports by ``__all__``."""
    used = _free(statement)
    if "__all__" in used:
        used |= {str(node.value) for node in ast.walk(statement) if isinstance(node, ast.Constant)}
    return used


def _free(node: ast.AST) -> set[str]:
    """The names that code uses without binding them itself, as parameters and local variables."""
    if isinstance(node, ast.Name):
        return {node.id}
    found = {name for child in ast.iter_child_nodes(node) for name in _free(child)}
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return found
    body = node.body if isinstance(node.body, list) else []
    bound = {each.id for part in body for each in ast.walk(part) if isinstance(each, ast.Name) and not _loads(each)}
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    bound |= {argument.arg for argument in arguments if argument is not None}
    outside = {name for part in _outside(node) for name in _free(part)}
    return (found - bound) | outside


def _loads(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def _outside(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[ast.AST]:
    """The parts of a function that belong to the scope around it: annotations, defaults, decorators."""
    yield node.args
    if not isinstance(node, ast.Lambda):
        yield from node.decorator_list
        yield from [node.returns] if node.returns else []


def _lines_with_docstring(tree: ast.Module, statement: ast.stmt, lines: list[str]) -> set[int]:
    """The lines of a definition, with its comments above and the string below that describes it."""
    body = tree.body
    first, last = _first_line(statement), statement.end_lineno or statement.lineno
    following = body[body.index(statement) + 1 :][:1]
    if following and isinstance(statement, ast.Assign | ast.AnnAssign):
        after = following[0]
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            last = after.end_lineno or after.lineno
    while lines[first - 2].startswith("# ") and not lines[first - 2].startswith("# ---"):
        first -= 1
    return set(range(first, last + 1))


def stale(root: Path = ROOT) -> list[str]:
    """One line for each generated file that is stale, missing or left over."""
    expected = generate(root)
    problems = []
    for path, text in expected.items():
        if not path.exists():
            problems.append(f"missing: {path.relative_to(root)}")
        elif path.read_text(encoding="utf-8") != text:
            problems.append(f"stale: {path.relative_to(root)}")
    return problems + [f"left over: {path.relative_to(root)}" for path in _left_over(root, expected)]


def write(root: Path = ROOT) -> list[str]:
    """Writes the generated trees, removes what is left over, and returns what was done, a line for each file."""
    expected = generate(root)
    written_paths = []
    for path, text in expected.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written_paths.append(f"wrote: {path.relative_to(root)}")
    for path in _left_over(root, expected):
        path.unlink()
        written_paths.append(f"removed: {path.relative_to(root)}")
    return written_paths


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Generates the sync shell, and driver and worker of threads.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if anything is stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    options = parser.parse_args(arguments)
    try:
        lines = stale(options.root) if options.check else write(options.root)
    except Untranslatable as problem:
        print(f"unasync: {problem}", file=sys.stderr)
        return 1
    for line in lines:
        print(line)
    if options.check and lines:
        print("unasync: run `make unasync`", file=sys.stderr)
        return 1
    return 0


# --- tokens ------------------------------------------------------------------------------------


def _tokens(source: str) -> list[Token]:
    return list(_join_fstrings(source, _raw_tokens(source)))


def _raw_tokens(source: str) -> Iterator[Token]:
    starts = [0]
    for text in io.StringIO(source):
        starts.append(starts[-1] + len(text))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        start, end = (starts[min(row, len(starts)) - 1] + column for row, column in (token.start, token.end))
        yield Token(token.type, token.string, start, end, token.start[0])


def _join_fstrings(source: str, tokens: Iterator[Token]) -> Iterator[Token]:
    """Makes one string of an f-string, as Python 3.11 does, so that every version generates the same."""
    for token in tokens:
        if token.kind not in _FSTRING_STARTS:
            yield token
            continue
        depth, last = 1, token
        while depth:
            last = next(tokens)
            depth += (last.kind in _FSTRING_STARTS) - (last.kind in _FSTRING_ENDS)
        yield Token(tokenize.STRING, source[token.start : last.end], token.start, last.end, token.line)


def _apply(source: str, edits: list[Edit]) -> str:
    pieces, position = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < position:
            continue  # within a piece that an earlier edit has replaced
        pieces += [source[position : edit.start], edit.text]
        position = edit.end
    return "".join([*pieces, source[position:]])


# --- markers -----------------------------------------------------------------------------------


def _apply_markers(source: str, name: str) -> str:
    comments = [token for token in _tokens(source) if token.kind == tokenize.COMMENT]
    lines = source.splitlines(keepends=True)
    dropped: set[int] = set()
    for comment in comments:
        line = lines[comment.line - 1]
        if ASYNC_ONLY.match(comment.text):
            statement = _statement_lines(source, comment.line)
            if not statement:
                raise Untranslatable(name, comment.line, "'async only' ends a statement, or the head of one")
            dropped |= statement
        elif match := SYNC_ONLY.match(comment.text):
            if line.lstrip() != comment.text + "\n":
                raise Untranslatable(name, comment.line, "'sync only' stands on a line of its own")
            lines[comment.line - 1] = line.replace(comment.text, match["code"])
    return "".join(line for number, line in enumerate(lines, start=1) if number not in dropped)


def _statement_lines(source: str, line: int) -> set[int]:
    """The lines of the innermost statement whose text, or whose head, covers `line`."""
    lines: range | None = None
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt):
            continue
        last = node.end_lineno or node.lineno
        body = getattr(node, "body", None)
        head = range(_first_line(node), (max(node.lineno, _first_line(body[0]) - 1) if body else last) + 1)
        if line in head and (lines is None or last - head.start < len(lines)):
            lines = range(head.start, last + 1)
    return set(lines or ())


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


# --- code --------------------------------------------------------------------------------------


def _keyword_edits(source: str, tokens: list[Token]) -> Iterator[Edit]:
    for token in tokens:
        if token.text in {"async", "await"} and token.kind not in {tokenize.STRING, tokenize.COMMENT}:
            end = token.end
            while source[end : end + 1] in {" ", "\t"}:
                end += 1
            yield Edit(token.start, end, "")


def _translate_generics(text: str) -> str:
    """Types with other parameters: a Generator has three, Awaitable and Coroutine are what they return."""
    for match in reversed(list(_GENERIC.finditer(text))):  # inner ones first
        parameters, end = _parameters(text, match.end())
        if not parameters:
            continue  # prose, not code
        if match["type"].endswith("Generator"):
            parameters += ["None"] * (3 - len(parameters))
            replacement = f"{match['module']}Generator[{', '.join(parameters)}]"
        else:
            replacement = parameters[-1]
        text = text[: match.start()] + replacement + text[end:]
    return text


def _parameters(text: str, start: int) -> tuple[list[str], int]:
    """The parameters of a type that begin at text[start], none if unclosed, and where it ends."""
    depth, parameters, begin = 1, [], start
    for position in range(start, len(text)):
        depth += (text[position] in "[({") - (text[position] in "])}")
        if depth == 0 or (depth == 1 and text[position] == ","):
            parameters.append(text[begin:position].strip())
            begin = position + 1
        if depth == 0:
            return [parameter for parameter in parameters if parameter], begin
    return [], start


def _name_edits(tokens: list[Token], name: str) -> Iterator[Edit]:
    for chain in _chains(tokens):
        written = ".".join(token.text for token in chain)
        replaced = _dotted(written)
        parts = replaced.split(".")
        if replaced != written:
            yield Edit(chain[0].start, chain[-1].end, ".".join(NAMES.get(part, part) for part in parts))
            continue
        if chain[0].text in ASYNC_LIBRARIES and len(chain) > 1:
            raise Untranslatable(name, chain[0].line, f"DOTTED has no counterpart of {written}")
        for token in chain:
            if token.text in NAMES:
                yield Edit(token.start, token.end, NAMES[token.text])
            elif re.match(r"_?Async[A-Z]", token.text):
                raise Untranslatable(name, token.line, f"NAMES has no counterpart of {token.text}")


def _chains(tokens: list[Token]) -> Iterator[list[Token]]:
    """Dotted names, each as the list of its names: a.b.c, and single names."""
    chain: list[Token] = []
    previous: Token | None = None
    for token in tokens:
        if token.is_name and chain and previous is not None and previous.text == ".":
            chain.append(token)
        elif token.text != "." or not chain:
            if chain:
                yield chain
            follows_dot = previous is not None and previous.text == "."
            chain = [token] if token.is_name and not follows_dot else []
            if token.is_name and follows_dot:
                yield [token]  # an attribute of an expression, as in f().aclose
        previous = token
    if chain:
        yield chain


def _dotted(written: str) -> str:
    parts = written.split(".")
    for length in range(len(parts), 1, -1):
        replacement = DOTTED.get(".".join(parts[:length]))
        if replacement:
            return ".".join([replacement, *parts[length:]])
    return written


def _import_edits(tokens: list[Token], name: str) -> Iterator[Edit]:
    """Replaces `import asyncio` by imports of the modules that its functions became."""
    used = {".".join(token.text for token in chain) for chain in _chains(tokens)}
    for first, second, third in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if first.text == "from" and second.text == third.text == ".":
            raise Untranslatable(name, first.line, "an import from a folder above is written in full")
        if first.text not in {"from", "import"} or second.text not in ASYNC_LIBRARIES:
            continue
        if first.text == "from" or third.kind not in {tokenize.NEWLINE, tokenize.COMMENT}:
            raise Untranslatable(name, first.line, f"write import {second.text}, on a line of its own")
        of_library = {written for written in used if written.startswith(f"{second.text}.")}
        modules = sorted({_dotted(written).split(".")[0] for written in of_library})
        yield Edit(first.start, second.end, f"import {', '.join(modules)}" if modules else "")


# --- files -------------------------------------------------------------------------------------


def _ruff(arguments: list[str], text: str, root: Path) -> str:
    command = [sys.executable, "-m", "ruff", *arguments]
    done = subprocess.run(command, input=text, text=True, capture_output=True, cwd=root, check=False)
    if done.returncode:
        raise RuntimeError(f"ruff {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def _left_over(root: Path, expected: dict[Path, str]) -> list[Path]:
    found = (path for target in TREES.values() for path in sorted((root / target).rglob("*.py")))
    return [path for path in found if path not in expected]


if __name__ == "__main__":
    sys.exit(main())
