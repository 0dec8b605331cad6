"""How a pipeline is shown: in plain text, and as a flowchart for Mermaid; whatever its queues are called."""

from __future__ import annotations

import re
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import mongoq
from tests.pipeline import stations


def flights() -> mongoq.Pipeline:
    pipeline = mongoq.Pipeline("flights", errors="flights.errors", inputs="raw", outputs="archive", trail="payloads")
    pipeline.stage(
        "raw",
        to="checked",
        model=stations.Flight,
        retry=mongoq.Fixed(5),
        max_retries=3,
        success_on=(KeyError, ValueError),
    )(stations.check)
    pipeline.stage(
        "checked",
        to=["late", "on time"],
        model=stations.Flight,
        where={"cancelled": False},
        otherwise=mongoq.Move("archive", delay=5, headers={"why": "cancelled"}),
        none="drop",
        errors=None,
    )(stations.route)
    pipeline.stage("late", to="raw", name="again", delivery="at-most-once", model=list[int])(stations.desk)
    pipeline.sink(["on time", "flights.errors"], where={"n": 1}, otherwise=mongoq.Drop(), shared=True, errors="lost")(
        stations.load
    )
    return pipeline


DESCRIPTION = """\
pipeline flights
  in          raw
  out         archive
  errors      flights.errors
  trail       with payloads

stage check
  takes       raw
  gives       checked
  loop        its items may come back to raw
  errors      flights.errors
  handler     tests.pipeline.stations:check
  model       tests.pipeline.stations:Flight
  delivery    exactly-once
  retry       Fixed(base=5, cap=None, jitter=0.0)
  max_retries 3
  success_on  builtins:KeyError, builtins:ValueError

stage route
  takes       checked
  gives       late, 'on time'
  loop        its items may come back to checked
  errors      none: it stops
  handler     tests.pipeline.stations:route
  model       tests.pipeline.stations:Flight
  where       {'cancelled': False}
  otherwise   move to archive, delay 5, headers {'why': 'cancelled'}
  delivery    exactly-once
  none        drop

stage again
  takes       late
  gives       raw
  loop        its items may come back to late
  errors      flights.errors
  handler     tests.pipeline.stations:Desk
  model       'list[int]'
  delivery    at-most-once

stage load
  takes       'on time', flights.errors, shared
  gives       nothing: items end here
  errors      lost
  handler     tests.pipeline.stations:load
  where       {'n': 1}
  otherwise   drop
  delivery    exactly-once"""

MERMAID = """\
flowchart LR
    queue_raw(["raw"])
    queue_checked(["checked"])
    queue_flights_2e_errors(["flights.errors"])
    queue_late(["late"])
    queue_on_20_time(["#39;on time#39;"])
    queue_archive(["archive"])
    queue_lost(["lost"])
    stage_check["check"]
    stage_route["route"]
    stage_again["again"]
    stage_load["load"]
    queue_raw --> stage_check
    queue_checked --> stage_route
    queue_late --> stage_again
    queue_on_20_time --> stage_load
    queue_flights_2e_errors --> stage_load
    stage_check --> queue_checked
    stage_check -. errors .-> queue_flights_2e_errors
    stage_route --> queue_late
    stage_route --> queue_on_20_time
    stage_route -. otherwise .-> queue_archive
    stage_again --> queue_raw
    stage_again -. errors .-> queue_flights_2e_errors
    stage_load -. errors .-> queue_lost"""


def test_a_pipeline_in_words() -> None:
    flights().check()
    assert flights().describe() == DESCRIPTION


def test_a_pipeline_for_mermaid() -> None:
    assert flights().to_mermaid() == MERMAID


def test_the_least_that_is_shown() -> None:
    pipeline = mongoq.Pipeline("nothing")
    assert (
        pipeline.describe()
        == "pipeline nothing\n  in          none\n  out         none\n  errors      none: a stage stops"
    )
    assert pipeline.to_mermaid() == "flowchart LR"


def test_what_fails_comes_in_by_its_queue_only_where_that_is_declared() -> None:
    for inputs, names in [(None, "raw"), (["raw", "bad"], "raw, bad")]:
        pipeline = mongoq.Pipeline("line", errors="bad", inputs=inputs)
        pipeline.sink("raw")(stations.load)
        pipeline.sink("bad", errors=None, name="mend")(stations.load)
        assert f"\n  in          {names}\n" in pipeline.describe()


def test_a_pipeline_with_faults_is_shown_too() -> None:
    nonsense: Any = {"a": []}
    pipeline = mongoq.Pipeline(nonsense, errors=nonsense, inputs=nonsense, outputs=nonsense)
    pipeline.stage([nonsense, None], to=[], name=nonsense, where=nonsense, otherwise=nonsense, delivery=nonsense)(
        nonsense
    )
    pipeline.stage("a", to="b", otherwise=mongoq.Move(nonsense), errors=nonsense)(stations.load)
    with pytest.raises(mongoq.GraphInvalid):
        pipeline.check()
    assert "takes       \"{'a': []}\", None" in pipeline.describe()
    assert sound(pipeline.to_mermaid())


NODE = r"(?:queue|stage)_[A-Za-z0-9_]*"
TEXT = r"\"(?:[\w ./:+-]|#\d+;)+\""
LINE = re.compile(
    rf"flowchart LR|    (?:{NODE}\(\[{TEXT}\]\)|{NODE}\[{TEXT}\]|{NODE} (?:-->|-\. (?:errors|otherwise) \.->) {NODE})",
)


def sound(chart: str) -> bool:
    """Say whether a chart is made of nothing but nodes with harmless names, and edges between nodes that are there."""
    lines = chart.split("\n")
    nodes = {match[1] for line in lines if (match := re.match(rf"    ({NODE})[(\[]", line))}
    ends = {end for line in lines if "> " in line for end in re.findall(NODE, line)}
    return all(LINE.fullmatch(line) for line in lines) and ends <= nodes


HOSTILE = [
    '"]; click queue_raw "javascript:alert(1)"',
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "#quot;] --> evil[#quot;",
    "a\nend\nsubgraph b",
    "`**bold**`",
    "1. one",
    "- one",
    "end",
    "%%{init: {'theme': 'dark'}}%%",
    "a -->|b| c",
    "été ✈ 航班",
    "\x1b[2J",
    "\\",
    " ",
    "\u2028\u202e",
    "\ud800",
    "&lt;b&gt;",
]


def test_any_name_is_text_in_a_chart() -> None:
    for name in HOSTILE:
        assert sound(named(name).to_mermaid()), name
        assert len(named(name).describe().split("\n")) == 18, name


def named(name: str) -> mongoq.Pipeline:
    pipeline = mongoq.Pipeline(name, errors=f"{name}.errors")
    pipeline.stage(name, to=f"{name}.out", name=name)(stations.pass_on)
    pipeline.sink(f"{name}.out", name=f"{name}.sink")(stations.load)
    return pipeline


@pytest.mark.filterwarnings("ignore:Do not use the .random. module")  # threads of earlier tests may roll dice
@settings(deadline=None, max_examples=30)
@given(st.text(), st.text())
def test_no_two_names_have_one_node(a: str, b: str) -> None:
    pipeline = mongoq.Pipeline("line")
    pipeline.sink([a, b])(stations.load)
    chart = pipeline.to_mermaid()
    assert sound(chart)
    assert len(re.findall(r"^    queue_\w*\(", chart, re.MULTILINE)) == len({a, b})
