"""The pages for operators: their commands exist, and show what the pages say."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from textwrap import dedent
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

import mongoq
from mongoq.cli.main import main
from tests.docs.blocks import ROOT
from tests.docs.commands import check_command, commands_in
from tests.waiting import until

DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text()
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text()
ALERTS = (ROOT / "docs" / "monitoring.md").read_text().partition("### Alerts")[2].partition("\n## ")[0]
DEPLOY = ROOT / "examples" / "shop" / "deploy"
TITLED = re.compile(r'^```\w+ title="(?P<path>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r'"([^"\n]+)"')


# --- commands ------------------------------------------------------------------------------------


def test_the_commands_of_the_pages_exist_with_their_options() -> None:
    commands = sorted({command for page in (DEPLOYMENT, TROUBLESHOOTING, ALERTS) for command in commands_in(page)})
    assert len(commands) > 35
    for command in commands:
        try:
            check_command(command)
        except click.UsageError as error:
            pytest.fail(f"{command}: {error}")


@pytest.mark.parametrize(
    "command",
    [
        "mongoq qeues",
        "mongoq queues --colour",
        "mongoq show",
        "mongoq show orders",
        "mongoq configure orders --lease x",
    ],
)
def test_a_command_that_does_not_exist_is_refused(command: str) -> None:
    with pytest.raises(click.UsageError):
        check_command(command)


def test_every_command_in_a_block_or_a_sentence_is_seen() -> None:
    text = "a `mongoq queues` and\n```sh\n$ mongoq doctor | head\nmongoq worker a:b \\\n  --drain\n```\n"
    assert list(commands_in(text)) == ["mongoq doctor | head", "mongoq worker a:b    --drain", "mongoq queues"]


# --- deployment ----------------------------------------------------------------------------------


def test_parts_of_files_are_in_these_files() -> None:
    parts = list(TITLED.finditer(DEPLOYMENT))
    assert len(parts) == 2
    for part in parts:
        assert dedent(part["text"]) in dedent_lines((ROOT / part["path"]).read_text(), part["text"]), part["path"]


def dedent_lines(text: str, part: str) -> str:
    """Return a text without the indentation that a part of it has."""
    indent = len(part) - len(part.lstrip(" "))
    return "".join(line[indent:] if line[:indent].isspace() else line for line in text.splitlines(keepends=True))


def test_every_file_of_the_folder_is_named() -> None:
    for path in DEPLOY.rglob("*"):
        assert path.is_dir() or path.name in DEPLOYMENT, path.name


def test_times_of_the_table_are_those_of_the_files() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["worker"]["stop_grace_period"]
    [unit] = re.findall(r"^TimeoutStopSec=(\d+)$", (DEPLOY / "shop-worker.service").read_text(), re.MULTILINE)
    pod = next(yaml.safe_load_all((DEPLOY / "kubernetes" / "app.yaml").read_text()))["spec"]["template"]["spec"]
    rows = [line for line in DEPLOYMENT.splitlines() if line.startswith(("| Compose", "| systemd", "| Kubernetes"))]
    times = [row.split("|")[3].strip() for row in rows]
    assert times == [compose.replace("s", " s"), f"{unit} s", f"{pod['terminationGracePeriodSeconds']} s"]


# --- monitoring ----------------------------------------------------------------------------------


def test_every_alert_has_a_row() -> None:
    rules = yaml.safe_load((ROOT / "examples" / "monitoring" / "alerts.yml").read_text())["groups"][0]["rules"]
    assert len(rules) >= 5
    for rule in rules:
        assert f"\n| `{rule['alert']}` |" in ALERTS, rule["alert"]


# --- troubleshooting -----------------------------------------------------------------------------


def test_what_the_page_quotes_is_what_mongoq_says() -> None:
    source = " ".join(path.read_text() for path in (ROOT / "mongoq").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # sentences that are joined from several lines
    own = {
        "0 of 40",
        "in five minutes",
        "there is no queue 'oders' in shop.mongoq; the nearest names are 'orders'",
    }
    quoted = {text for text in QUOTED.findall(re.sub(r"`[^`]*`", "", TROUBLESHOOTING)) if text not in own}
    assert len(quoted) > 8
    for text in quoted:
        assert text in source, text


def test_every_section_is_in_the_table_of_symptoms() -> None:
    anchors = set(re.findall(r"\]\(#([a-z-]+)\)", TROUBLESHOOTING.partition("\n## ")[0]))
    sections = {
        re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^## (.+)$", TROUBLESHOOTING, re.M)
    }
    assert anchors == sections


@pytest.fixture
def run(uri: str, database: str) -> Callable[..., Result]:
    """Run a command of the page in this process."""

    def invoke(command: str) -> Result:
        environment = {"MONGOQ_URI": uri, "MONGOQ_DATABASE": database, "COLUMNS": "160"}
        check_command(command)
        return CliRunner().invoke(main, command.split()[1:], env=environment)

    return invoke


Run = Callable[[str], Result]


def test_a_paused_queue_is_shown_as_paused(run: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    broker.queue("orders").pause()
    assert "paused" in run("mongoq queues orders").stdout
    assert run("mongoq resume orders --yes").exit_code == 0
    assert "paused" not in run("mongoq queues orders").stdout


def test_a_queue_without_worker_is_a_problem_of_doctor(run: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1, when=datetime.now(UTC) - timedelta(minutes=5))
    result = run("mongoq doctor")
    assert result.exit_code == 1
    assert re.search(r"problem +consumers +no worker takes the due items of orders", result.stdout)
    assert "there are no workers" in run("mongoq workers").stdout


def test_an_item_whose_worker_has_died_is_expired_and_keeps_its_attempt(run: Run, broker: mongoq.Broker) -> None:
    queue = broker.queue("orders")
    queue.push(1)
    item = queue.reserve(lease=0.05)
    assert item is not None
    until(lambda: queue.counts().expired)
    assert str(item.id) in run("mongoq peek orders --state expired").stdout
    shown = run(f"mongoq show {item.id}").stdout
    assert re.search(r"attempts +1", shown)
    assert "expired" in shown


def test_a_failed_item_shows_its_error_and_the_group_of_letters(run: Run, broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", max_retries=1)
    queue.push({"city": "Atlantis"})
    worker = mongoq.Worker(broker)

    @worker.consumer(queue, retry=mongoq.Fixed(0))
    def ship(order: dict[str, Any]) -> None:
        raise KeyError("street")

    worker.run(drain=True)
    listed = run("mongoq dead list orders --group").stdout
    assert "retries exhausted" in listed
    assert "KeyError" in listed
    assert "KeyError: 'street'" in run("mongoq dead show orders --error KeyError --limit 1").stdout
    assert run("mongoq dead replay orders --error KeyError --yes").exit_code == 0
    assert queue.size() == 1


def test_a_queue_without_history_says_so_in_its_settings(run: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    assert re.search(r"history +none: processed items are deleted", run("mongoq settings orders").stdout)
    assert run("mongoq configure orders --history 7d --yes").exit_code == 0
    assert re.search(r"history +7d", run("mongoq settings orders").stdout)


def test_a_second_replay_pushes_nothing_unless_it_has_a_label(run: Run, broker: mongoq.Broker) -> None:
    queue = broker.queue("orders", history=3600)
    queue.push(1)
    item = queue.reserve()
    assert item is not None
    queue.commit(item)
    replay = "mongoq replay orders --since 1h --yes"
    assert "pushed 1 of 1" in run(replay).stdout
    assert "pushed 0 of 1" in run(replay).stdout
    assert "pushed 1 of 1" in run(f"{replay} --label again").stdout


def test_an_unknown_queue_is_an_error_with_the_nearest_names(run: Run, broker: mongoq.Broker) -> None:
    broker.queue("orders").push(1)
    result = run("mongoq peek oders")
    assert result.exit_code == 1
    assert "the nearest names are 'orders'" in result.stderr
    assert run("mongoq queues orders").exit_code == 0


def test_a_push_with_a_key_in_use_adds_nothing_and_the_item_shows_the_key(run: Run, broker: mongoq.Broker) -> None:
    for number in range(2):
        broker.queue("orders").push(number, key="customer:7")
    shown = run("mongoq peek orders --state live").stdout
    assert shown.count("customer:7") == 1
