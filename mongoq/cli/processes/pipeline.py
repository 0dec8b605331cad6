"""Commands ``pipeline …``: check, draw and run the pipeline that a recipe describes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

import mongoq
from mongoq.cli.base.arguments import DURATION, examples
from mongoq.cli.base.connection import TIMEOUT_SECONDS, connect, find_place, with_connection, with_json
from mongoq.cli.base.output import INTERRUPTED, OPERATION_FAILED, Output
from mongoq.cli.processes.target import has_coroutines
from mongoq.errors import GraphInvalid, MongoqError
from mongoq.pipeline.pipeline import Pipeline
from mongoq.pipeline.run.run import Progress

COLUMNS = ("stage", "moved", "done", "dropped", "screened", "retried", "dead", "waiting", "scheduled", "reserved")
"""Numbers of a stage that are shown when a run has ended."""

recipe_argument = click.argument("recipe", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group(short_help="Check, draw and run the pipeline of a recipe.")
def pipeline() -> None:
    """Check, draw and run the pipeline that RECIPE describes, a file of YAML or JSON.

    The handlers and models that it names are imported, also from the current folder: use only recipes that you trust
    as much as code.
    """


def read_recipe(path: Path) -> Pipeline:
    """Return the pipeline of a recipe, checked.

    Raises:
        GraphInvalid: the recipe has faults.
        MongoqError: the file cannot be read.
    """
    # As for ``python -m``: the console script has its own folder there.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return Pipeline.from_recipe(path)
    except OSError as error:
        raise MongoqError(f"{path} cannot be read: {error.strerror}") from error


@pipeline.command()
@recipe_argument
@with_json
def check(*, recipe: Path, output: Output) -> None:
    """Check a recipe, without a server: exit code 0 if it is fine, else all faults and exit code 1."""
    try:
        read = read_recipe(recipe)
    except GraphInvalid as invalid:
        if not output.as_json:
            raise
        output.document({"pipeline": invalid.pipeline, "ok": False, "faults": list(invalid.faults)})
        click.get_current_context().exit(OPERATION_FAILED)
    graph = read.graph
    counts = {"stages": len(graph.stages), "sources": len(graph.sources), "queues": len(graph.queues)}
    if output.as_json:
        output.document({"pipeline": read.name, "ok": True, **counts, "faults": []})
    else:
        output.line(f"{read.name}: ok, " + ", ".join(f"{number} {name}" for name, number in counts.items()))


@pipeline.command()
@recipe_argument
@click.option("--mermaid", is_flag=True, help="A flowchart for Mermaid, instead of text.")
@with_json
def draw(*, recipe: Path, mermaid: bool, output: Output) -> None:
    """Print the sources, stages and queues of a recipe, without a server."""
    read = read_recipe(recipe)
    drawing = read.to_mermaid() if mermaid else read.describe()
    if output.as_json:
        output.document({"pipeline": read.name, "mermaid" if mermaid else "text": drawing})
    else:
        output.line(drawing, keep="\n\t")


@pipeline.command(epilog=examples("mongoq pipeline run flights.yaml", "mongoq pipeline run flights.yaml --drain"))
@recipe_argument
@click.option("--drain", is_flag=True, help="End when nothing is left in its queues.")
@click.option("--stage", "stages", multiple=True, help="Only this stage or source; repeatable.")
@click.option("--grace", type=DURATION, help="Time that handlers have to end after SIGTERM or Ctrl-C, such as 30s.")
@with_connection
@with_json
def run(
    *, recipe: Path, drain: bool, stages: Sequence[str], grace: timedelta | None, output: Output, **place: Any
) -> None:
    """Run the stages of a recipe in this process, until SIGTERM or Ctrl-C; with --drain until its queues are empty.

    The run ends in good order: handlers finish within the grace, and other items go back to their queues.
    """
    read = read_recipe(recipe)
    options: dict[str, Any] = {"stages": list(stages) or None} | ({} if grace is None else {"grace": grace})
    started_text = f"{read.name} runs; Ctrl-C ends it"

    async def run_async() -> Progress:
        found: dict[str, Any] = find_place(**place)
        async with mongoq.connect_async(timeout=TIMEOUT_SECONDS, **found) as broker:
            if drain:
                return await read.drain_async(broker, **options)
            async with read.start_async(broker, **options) as started:
                output.note(started_text)
                await started.wait()
                return await started.progress()

    if has_coroutines(read):
        progress = asyncio.run(run_async())
    else:
        with connect(**place) as broker:
            if drain:
                progress = read.drain(broker, **options)
            else:
                with read.start(broker, **options) as started:
                    output.note(started_text)
                    started.wait()
                    progress = started.progress()
    sources = [{"source": source.source, "pushed": source.pushed} for source in progress.sources.values()]
    if sources:
        output.table(("source", "pushed"), sources, empty="")
    rows = [{column: getattr(stage, column) for column in COLUMNS} for stage in progress.stages.values()]
    output.table(COLUMNS, rows, empty="no stages")
    for queue, number in progress.errors.items():
        if number:
            output.note(f"{number:,} failed items are in {queue}: mongoq dead list {queue}")
    if drain and progress.interrupted:
        output.note("stopped before the queues were empty; run it again to go on")
        click.get_current_context().exit(INTERRUPTED)
