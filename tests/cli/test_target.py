"""What ``module:object`` names, and what an error says when it names nothing that can be run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click import ClickException

import mongoq
from mongoq.aio import AsyncBroker
from mongoq.cli.processes.target import Factory, TargetFailed, TargetUnusable, check_made, load
from mongoq.sync import Broker

PIPELINES = """
import mongoq
flights = mongoq.Pipeline("flights")
fares = mongoq.Pipeline("fares")
number = 3
class Shop: pass
def make_worker(): pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None) or sys.modules[name].__spec__):
            del sys.modules[name]


def refusal(path: str) -> ClickException:
    with pytest.raises(ClickException) as raised:
        load(path)
    return raised.value


def test_the_current_folder_is_searched_first(folder: Path) -> None:
    (folder / "shop_a.py").write_text(PIPELINES)
    assert load("shop_a:flights").name == "flights"
    assert sys.path[0] == str(folder)


def test_an_attribute_of_an_attribute_is_found(folder: Path) -> None:
    (folder / "shop_b.py").write_text(PIPELINES + "Shop.inner = flights")
    assert load("shop_b:Shop.inner").name == "flights"


@pytest.mark.parametrize("path", ["shop", "shop:", ":worker", ""])
def test_a_path_without_both_parts_is_refused(folder: Path, path: str) -> None:
    error = refusal(path)
    assert isinstance(error, TargetUnusable)
    assert "MODULE:OBJECT" in error.message


def test_a_missing_module_names_the_folder_and_its_modules_the_nearest_first(folder: Path) -> None:
    for name in ("zebra", "shop_worker", "other"):
        (folder / f"{name}.py").touch()
    error = refusal("shop_workers:worker")
    assert isinstance(error, TargetUnusable)
    assert error.exit_code == 2
    assert f"there is no module 'shop_workers' in {folder}" in error.message
    assert "the folder has shop_worker, " in error.message


def test_a_missing_module_of_a_package_names_those_that_it_has(folder: Path) -> None:
    (folder / "shop_c").mkdir()
    for name in ("__init__", "workers"):
        (folder / "shop_c" / f"{name}.py").touch()
    message = refusal("shop_c.worker:main").message
    assert "module 'shop_c' (" in message
    assert "has no module 'worker' in it; it has workers" in message


@pytest.mark.parametrize(("path", "name"), [("shop_d.py:worker", "shop_d"), ("./shop_e/jobs.py:x", "shop_e.jobs")])
def test_a_path_of_a_file_is_told_the_name_of_the_module(folder: Path, path: str, name: str) -> None:
    (folder / "shop_d.py").touch()
    assert refusal(path).message.endswith(f"name a module as import does: {name}")


def test_a_module_that_raises_shows_the_frames_of_the_user(folder: Path) -> None:
    (folder / "shop_f.py").write_text("def fail():\n    raise ValueError('no stock')\n\nfail()\n")
    error = refusal("shop_f:worker")
    assert isinstance(error, TargetFailed)
    assert error.exit_code == 1
    assert "module 'shop_f' raised an error" in error.message
    assert error.message.endswith("ValueError: no stock")
    assert [line.strip() for line in error.message.splitlines() if line.startswith("  File")] == [
        f'File "{folder}/shop_f.py", line 4, in <module>',
        f'File "{folder}/shop_f.py", line 2, in fail',
    ]


def test_a_module_that_imports_a_missing_one_says_so(folder: Path) -> None:
    (folder / "shop_g.py").write_text("import shop_that_is_missing\n")
    error = refusal("shop_g:worker")
    assert isinstance(error, TargetFailed)
    assert "shop_g.py" in error.message
    assert "No module named 'shop_that_is_missing'" in error.message


@pytest.mark.parametrize(
    "source", ["def broken(:\n", "raise SystemExit(3)", "import mongoq; mongoq.connect('http://x')"]
)
def test_whatever_a_module_raises_is_reported(folder: Path, source: str) -> None:
    name = f"shop_h{abs(hash(source))}"
    (folder / f"{name}.py").write_text(source)
    error = refusal(f"{name}:worker")
    assert isinstance(error, TargetFailed)
    assert f"{name}.py" in error.message
    assert "/mongoq/connection.py" not in error.message


def test_an_error_of_mongoq_is_one_line_with_the_line_of_the_user(folder: Path) -> None:
    text = (
        "import mongoq\n\ndef connect():\n    return mongoq.connect('mongodb://ada:secret@127.0.0.1:9', timeout=0.1)\n"
    )
    (folder / "shop_l.py").write_text(text)
    (folder / "shop_m.py").write_text("import shop_l\nshop_l.connect()\n")
    error = refusal("shop_m:worker")
    assert error.exit_code == 3
    assert error.message.startswith("shop_l.py:4: no usable MongoDB answered at ")
    assert "\n" not in error.message
    assert "secret" not in error.message


def test_an_error_of_mongoq_keeps_the_traceback_of_the_error_of_the_user_that_caused_it(folder: Path) -> None:
    text = (
        "import mongoq\ntry:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise mongoq.MongoqError from error\n"
    )
    (folder / "shop_n.py").write_text(text)
    assert 'shop_n.py", line 3' in refusal("shop_n:worker").message


def test_a_missing_variable_is_shown_without_the_frames_of_python(folder: Path) -> None:
    (folder / "shop_o.py").write_text("import os\nuri = os.environ['SHOP_THAT_IS_MISSING']\n")
    message = refusal("shop_o:worker").message
    assert message.count("  File ") == 1
    assert message.endswith("KeyError: 'SHOP_THAT_IS_MISSING'")


def test_credentials_are_not_shown(folder: Path) -> None:
    (folder / "shop_i.py").write_text("raise ValueError('mongodb://ada:secret@db/x')")
    message = refusal("shop_i:worker").message
    assert "secret" not in message
    assert "mongodb://***@db/x" in message


def test_a_missing_object_names_what_the_module_has_the_nearest_first(folder: Path) -> None:
    (folder / "shop_j.py").write_text(PIPELINES)
    message = refusal("shop_j:flihgts").message
    assert f"module 'shop_j' ({folder}/shop_j.py) was imported, and has no 'flihgts' in it" in message
    assert "it has flights, " in message
    assert "make_worker" in message
    assert "number" not in message


@pytest.mark.parametrize(
    ("name", "kind"), [("number", "of type int"), ("Shop", "the class Shop"), ("mongoq", "of type module")]
)
def test_an_object_of_another_kind_is_named(folder: Path, name: str, kind: str) -> None:
    (folder / "shop_k.py").write_text(PIPELINES)
    error = refusal(f"shop_k:{name}")
    assert isinstance(error, TargetUnusable)
    assert f"shop_k:{name} is {kind}, and not a Worker" in error.message


def test_what_a_factory_has_made_is_checked() -> None:
    check_made("app:make", mongoq.Pipeline("flights"))
    with pytest.raises(TargetUnusable, match="app:make returned None"):
        check_made("app:make", None)
    with pytest.raises(TargetUnusable, match="an object of type int"):
        check_made("app:make", 3)


def by_name(broker: Any) -> None: ...
def by_type(connection: mongoq.Broker) -> None: ...
def by_text(connection: mongoq.AsyncBroker) -> None: ...
def with_defaults(shop: str = "a", *more: str, **options: str) -> None: ...
async def in_loop(broker: Any) -> None: ...
async def in_loop_alone() -> None: ...
async def in_loop_plain(broker: mongoq.Broker) -> None: ...
def handler(payload: Any) -> None: ...
def of_two(broker: Any, shop: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "broker", "asynchronous"),
    [
        (by_name, Broker, False),
        (by_type, Broker, False),
        (by_text, AsyncBroker, False),
        (with_defaults, None, False),
        (in_loop, AsyncBroker, True),
        (in_loop_alone, None, True),
        (in_loop_plain, Broker, True),
    ],
)
def test_a_factory_takes_nothing_or_a_broker(function: Any, broker: type | None, asynchronous: bool) -> None:
    factory = Factory("app:make", function)
    assert factory.broker is broker
    assert factory.asynchronous is asynchronous


@pytest.mark.parametrize("function", [handler, of_two])
def test_a_handler_is_not_called_as_a_factory(function: Any) -> None:
    with pytest.raises(TargetUnusable, match="name it broker"):
        Factory("app:handler", function)


def test_a_factory_that_raises_shows_its_own_frames() -> None:
    def fail() -> None:
        raise ValueError("no stock")

    async def fail_in_loop() -> None:
        fail()

    with pytest.raises(TargetFailed, match="the function app:fail raised an error") as raised:
        Factory("app:fail", fail).make()
    assert raised.value.message.count("File ") == 1
    with pytest.raises(TargetFailed, match="no stock"):
        asyncio.run(Factory("app:fail", fail_in_loop).make_async())
