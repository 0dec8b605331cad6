"""A graph as a flowchart for Mermaid."""

from __future__ import annotations

import re

from mongoq.pipeline.graph.graph import Graph
from mongoq.pipeline.graph.names import shown
from mongoq.pipeline.graph.routes import in_words, queues, ways

__all__ = ["mermaid"]

LITERAL = re.compile(r"[^\w ./:+-]")


def mermaid(graph: Graph) -> str:
    """Return the text of the flowchart. A node keeps its id when other nodes are added or removed."""
    graph = in_words(graph)
    lines = ["flowchart LR"]
    lines += [f'    {_id("queue", queue)}(["{_label(queue)}"])' for queue in queues(graph)]
    lines += [f'    {_id("stage", stage.name)}["{_label(stage.name)}"]' for stage in graph.stages]
    lines += [f'    {_id("source", source.name)}[("{_label(source.name)}")]' for source in graph.sources]
    lines += [f"    {_id('source', source.name)} --> {_id('queue', source.target)}" for source in graph.sources]
    for stage in graph.stages:
        lines += [f"    {_id('queue', source)} --> {_id('stage', stage.name)}" for source in stage.sources]
    for way in ways(graph):
        arrow = "-->" if way.kind == "to" else f"-. {way.kind} .->"
        lines.append(f"    {_id('stage', way.stage.name)} {arrow} {_id('queue', way.queue)}")
    return "\n".join(lines)


def _id(kind: str, name: object) -> str:
    """Return an id of letters, digits and underscores; different names have different ids."""
    # A graph with faults is drawn as well, so a name may be of any type.
    told = name if isinstance(name, str) else f"{name!r:.150}"
    return f"{kind}_{re.sub('[^A-Za-z0-9]', lambda found: f'_{ord(found[0]):x}_', told)}"


def _label(name: object) -> str:
    """Return a name that Mermaid and the browser read as text, without markup."""
    return LITERAL.sub(lambda found: f"#{ord(found[0])};", shown(name))
