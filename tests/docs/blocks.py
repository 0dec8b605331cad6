"""The code blocks of a page, run in the order of the page and in one namespace, with their output compared."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$(?:\n\n```text\n(?P<output>.*?)^```$)?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of Python, and the block of text right behind it, which is what it prints."""

    page: str
    line: int
    code: str
    output: str | None

    @property
    def needs_spark(self) -> bool:
        return "pyspark" in self.code

    def run(self, namespace: dict[str, Any], replacements: Mapping[str, str]) -> None:
        """Run the block; its traceback shows the page's own lines."""
        code = "\n" * (self.line - 1) + self.code
        for old, new in replacements.items():
            code = code.replace(old, new)
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(code, self.page, "exec", dont_inherit=True), namespace)
        if self.output is not None:
            output = printed.getvalue().strip()
            assert output == self.output.strip(), f"{self.page}:{self.line} prints\n{output}"


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text()
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        yield Block(page, line, match["code"], match["output"])


def run(page: str, *, spark: bool, replacements: Mapping[str, str] | None = None) -> None:
    """Run the blocks of a page; without Spark, all but those that need it."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    try:
        for block in blocks(page):
            if spark or not block.needs_spark:
                block.run(namespace, replacements or {})
    finally:
        broker = namespace.get("broker")
        if broker is not None:
            broker.close()
        server = namespace.get("server")
        if server is not None:
            server.stop()


if __name__ == "__main__":
    run(sys.argv[1], spark=True)
