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

from mongoq.monitoring.durations import OUTCOMES
from mongoq.monitoring.prometheus import STATES, PrometheusMetrics
from mongoq.testing import VirtualBroker

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
NAME = re.compile(r"\bmongoq_\w+")
MATCHER = re.compile(r'(\w+)(?:=~|=|!=|!~)"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|without|on) \(([^)]*)\)")
VALUES: dict[str, set[str]] = {
    "state": set(STATES),
    "event": {"put", "get", "reserve", "commit", "rollback", "release", "move", "dead", "expired"},
    "outcome": {"done", "failed", "cancelled", "mixed", *(outcome.__name__.lower() for outcome in OUTCOMES)},
    "job": {"mongoq", "mongoq-workers"},
    "queue": {"$queue"},
}


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
