"""The dashboard, the alert rules and the configuration of ``examples/monitoring``: they fit the exporter."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import mongoq
from mongoq.model.process import EVENTS
from mongoq.monitoring.durations import OUTCOMES
from mongoq.monitoring.prometheus import STATES, PrometheusMetrics
from mongoq.testing import VirtualBroker

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
NAME = re.compile(r"\bmongoq_\w+")
MATCHER = re.compile(r'(\w+)(?:=~|=|!=|!~)"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|without|on) \(([^)]*)\)")
VALUES: dict[str, set[str]] = {
    "state": set(STATES),
    "event": set(EVENTS),
    "outcome": {"done", "failed", "cancelled", "mixed", *(outcome.__name__.lower() for outcome in OUTCOMES)},
    "job": {"mongoq", "mongoq-workers"},
    "queue": {"$queue"},
}
SEVERITIES = {"warning", "critical"}


def read_alerts() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def read_dashboard() -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return dashboard


def expressions() -> list[str]:
    panels = [target["expr"] for panel in read_dashboard()["panels"] for target in panel["targets"]]
    variables = [one["definition"] for one in read_dashboard()["templating"]["list"] if one["type"] == "query"]
    return panels + variables + [rule["expr"] for rule in read_alerts()]


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """Labels of each series that the exporter and the workers serve, by its name."""
    with VirtualBroker() as broker:
        broker.queue("orders").push_many(range(2))
        metrics = PrometheusMetrics(broker)
        metrics._durations.observe("orders", "done", 1.0)
        samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


def test_every_metric_is_served_and_has_the_labels_that_are_asked_for(labels: dict[str, set[str]]) -> None:
    assert len(expressions()) > 15
    for expression in expressions():
        names = NAME.findall(expression)
        assert names or "up" in expression
        known = {"job", "instance"}.union(*(labels[name] for name in names))
        asked = {label.strip() for group in GROUPING.findall(expression) for label in group.split(",")}
        assert asked | {label for label, _ in MATCHER.findall(expression)} <= known, expression


def test_every_value_of_a_label_exists() -> None:
    for expression in expressions():
        for label, value in MATCHER.findall(expression):
            assert set(value.split("|")) <= VALUES[label], expression


def test_every_metric_of_a_broker_is_watched(labels: dict[str, set[str]]) -> None:
    shown = {name for expression in expressions() for name in NAME.findall(expression)}
    assert {name for name in labels if "process_duration" not in name} <= shown


def test_alerts_are_complete_and_name_only_labels_that_they_have(labels: dict[str, set[str]]) -> None:
    rules = read_alerts()
    assert len({rule["alert"] for rule in rules}) == len(rules) == 8
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in SEVERITIES
        assert rule["annotations"]["summary"]
        texts = " ".join(rule["annotations"].values())
        grouped = {label.strip() for group in GROUPING.findall(rule["expr"]) for label in group.split(",")}
        assert set(re.findall(r"\$labels\.(\w+)", texts)) <= (grouped or {"job", "instance"})


def test_a_paused_queue_waits_on_purpose() -> None:
    waiting = [rule for rule in read_alerts() if "mongoq_oldest_age_seconds" in rule["expr"]]
    assert len(waiting) == 2
    for rule in waiting:
        assert rule["expr"].split(" unless on (queue) ")[1] == "max by (queue) (mongoq_paused) == 1"


def test_failures_hanging_handlers_and_missing_workers_raise_an_alert() -> None:
    alerts = {rule["alert"]: rule["expr"] for rule in read_alerts()}
    assert 'mongoq_process_duration_seconds_count{outcome="failed"}' in alerts["MongoqHandlersFail"]
    assert 'mongoq_items{state="reserved"}' in alerts["MongoqHandlersHang"]
    assert alerts["MongoqWorkerDown"] == 'up{job="mongoq-workers"} == 0'


def test_panels_do_not_overlap_and_name_their_data_source() -> None:
    panels = read_dashboard()["panels"]
    cells: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= own
        assert panel["datasource"]["uid"] == "${datasource}"


def test_the_configuration_loads_the_rules_and_scrapes_the_exporter() -> None:
    configuration = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert [(FOLDER / name).is_file() for name in configuration["rule_files"]] == [True]
    assert {job["job_name"] for job in configuration["scrape_configs"]} == VALUES["job"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not on PATH")
@pytest.mark.parametrize("arguments", [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml")])
def test_promtool_accepts_the_files(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not on PATH")
def test_promtool_accepts_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    queries = [
        target["expr"].replace("$__rate_interval", "1m")
        for panel in read_dashboard()["panels"]
        for target in panel["targets"]
    ]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not on PATH")
def test_promtool_accepts_the_metrics(broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    metrics = PrometheusMetrics(broker)
    metrics._durations.observe("orders", "done", 1.0)
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics.render(), capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
