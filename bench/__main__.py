"""``python -m bench NAME``: runs one benchmark and writes its result as JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import (
    churn,
    commands,
    contention,
    core,
    exactly_once,
    group_commit,
    latency,
    limits,
    pages,
    pipelines,
    report,
    sequences,
    spark,
    spark_frames,
    spark_memory,
    telemetry,
    workers,
)

BENCHMARKS = {
    "core": core.BENCHMARK,
    "group-commit": group_commit.BENCHMARK,
    "contention": contention.BENCHMARK,
    "churn": churn.BENCHMARK,
    "latency": latency.BENCHMARK,
    "limits": limits.BENCHMARK,
    "workers": workers.BENCHMARK,
    "telemetry": telemetry.BENCHMARK,
    "pipelines": pipelines.BENCHMARK,
    "exactly-once": exactly_once.BENCHMARK,
    "sequences": sequences.BENCHMARK,
    "commands": commands.BENCHMARK,
    "pages": pages.BENCHMARK,
    "spark": spark.BENCHMARK,
    "spark-frames": spark_frames.BENCHMARK,
    "spark-memory": spark_memory.BENCHMARK,
}
"""By the name of the sub-command; a new benchmark is a module with a ``BENCHMARK``, and a line here."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure mongoq beside the bare driver.")
    commands = parser.add_subparsers(dest="name", required=True, metavar="BENCHMARK")
    for name, benchmark in BENCHMARKS.items():
        command = commands.add_parser(name, help=benchmark.summary, description=benchmark.summary)
        command.add_argument("--uri", help="the MongoDB to measure on; default a private one")
        command.add_argument("--database", default="mongoq_bench", help="where it makes collections of its own")
        command.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes; default stdout")
        benchmark.options(command)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    result = BENCHMARKS[options.name].run(options)
    report.write({"benchmark": options.name, **result}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
