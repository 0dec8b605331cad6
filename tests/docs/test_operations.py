"""The pages for operators: their commands exist, and show what the pages say."""

from __future__ import annotations

import re
from textwrap import dedent

import click
import pytest
import yaml

from tests.docs.blocks import ROOT
from tests.docs.commands import check_command, commands_in

DEPLOY = ROOT / "examples" / "shop" / "deploy"
TITLED = re.compile(r'^```\w+ title="(?P<path>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def alerts() -> str:
    """Return what the page on monitoring says of alerts."""
    return page("monitoring").partition("### Alerts")[2].partition("\n## ")[0]


# --- commands ------------------------------------------------------------------------------------


def test_the_commands_of_the_pages_exist_with_their_options() -> None:
    commands = sorted(
        {command for text in (page("deployment"), page("troubleshooting"), alerts()) for command in commands_in(text)}
    )
    assert len(commands) > 35
    for command in commands:
        try:
            check_command(command)
        except click.UsageError as error:
            pytest.fail(f"{command}: {error}")


def test_a_command_that_does_not_exist_is_refused() -> None:
    for command in ("mongoq qeues", "mongoq queues --colour", "mongoq show", "mongoq configure orders --lease x"):
        with pytest.raises(click.UsageError):
            check_command(command)


def test_every_command_in_a_block_or_a_sentence_is_seen() -> None:
    text = "a `mongoq queues` and\n```sh\n$ mongoq doctor | head\nmongoq worker a:b \\\n  --drain\n```\n"
    assert list(commands_in(text)) == ["mongoq doctor | head", "mongoq worker a:b    --drain", "mongoq queues"]


# --- deployment ----------------------------------------------------------------------------------


def test_parts_of_files_are_in_these_files() -> None:
    parts = list(TITLED.finditer(page("deployment")))
    assert len(parts) == 2
    for part in parts:
        assert dedent(part["text"]) in dedent_lines((ROOT / part["path"]).read_text(), part["text"]), part["path"]


def dedent_lines(text: str, part: str) -> str:
    """Return a text without the indentation that a part of it has."""
    indent = len(part) - len(part.lstrip(" "))
    return "".join(line[indent:] if line[:indent].isspace() else line for line in text.splitlines(keepends=True))


def test_every_file_of_the_folder_is_named() -> None:
    for path in DEPLOY.rglob("*"):
        assert path.is_dir() or path.name in page("deployment"), path.name


def test_times_of_the_table_are_those_of_the_files() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["worker"]["stop_grace_period"]
    [unit] = re.findall(r"^TimeoutStopSec=(\d+)$", (DEPLOY / "shop-worker.service").read_text(), re.MULTILINE)
    pod = next(yaml.safe_load_all((DEPLOY / "kubernetes" / "app.yaml").read_text()))["spec"]["template"]["spec"]
    rows = [
        line for line in page("deployment").splitlines() if line.startswith(("| Compose", "| systemd", "| Kubernetes"))
    ]
    times = [row.split("|")[3].strip() for row in rows]
    assert times == [compose.replace("s", " s"), f"{unit} s", f"{pod['terminationGracePeriodSeconds']} s"]


# --- monitoring ----------------------------------------------------------------------------------


def test_every_alert_has_a_row() -> None:
    rules = yaml.safe_load((ROOT / "examples" / "monitoring" / "alerts.yml").read_text())["groups"][0]["rules"]
    assert len(rules) >= 5
    for rule in rules:
        assert f"\n| `{rule['alert']}` |" in alerts(), rule["alert"]


# --- troubleshooting -----------------------------------------------------------------------------


def test_every_section_is_in_the_table_of_symptoms() -> None:
    anchors = set(re.findall(r"\]\(#([a-z-]+)\)", page("troubleshooting").partition("\n## ")[0]))
    sections = {
        re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^## (.+)$", page("troubleshooting"), re.M)
    }
    assert anchors == sections
