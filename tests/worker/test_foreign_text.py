"""Texts of others, such as errors that quote a payload: they cost linear time, and credentials in them are hidden."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import mongoq

LENGTH = 60_000
REPEATED = ["a", "1", ".", ":", "/", "@", " ", "\n", "-", "{", "(", "_", "%", "[", '"', "=", "\\"]
REPEATED += ["://", "://a", "a:", "a@", "1.", "\n ", "\n\tat ", ": ", "/a", "http://::", "password=", "_token: "]
REPEATED += [" (configured timeouts: ", "not authorized on ", "version `GLIBC_1", "    a: b\n", ": line 1 column 1"]
ENDS = ["", "!"]


def find_patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    for module in pkgutil.walk_packages(mongoq.__path__, "mongoq."):
        if module.name.rpartition(".")[2] != "__main__":
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, re.Pattern):
                    yield f"{module.name}.{name}", value


@pytest.mark.timeout(60)  # a pattern that backtracks needs minutes for one of these texts, all together need seconds
def test_no_pattern_backtracks_on_the_text_of_others() -> None:
    texts = [part * (LENGTH // len(part)) + end for part in REPEATED for end in ENDS]
    patterns = {pattern: name for name, pattern in find_patterns()}
    assert len(patterns) > 10
    for pattern, name in patterns.items():
        for text in texts:
            print(name, repr(text[:20]))  # shown when the time is up
            pattern.search(text)


SHOWN = {
    "mongodb://root:pw@db/x is away": "mongodb://***@db/x is away",
    "https://TOKEN@host/a": "https://***@host/a",
    "http://user:p/w@host": "http://***@host",
    "http://a:b@c,http://d:e@f": "http://***@c,http://***@f",
    "GET http://host/a?password=pw&page=2": "GET http://host/a?password=***&page=2",
    "AWS_SESSION_TOKEN: abc, x": "AWS_SESSION_TOKEN: ***, x",
    "http://host:80/a@b is no mail": "http://host:80/a@b is no mail",
    "unexpected token: }": "unexpected token: }",
}


def fail(text: str) -> None:
    raise ConnectionError(text)


@pytest.mark.timeout(90)
def test_the_log_of_failed_runs_hides_credentials_only(broker: mongoq.Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.queue("orders", max_retries=0)
    queue.push_many([*SHOWN, "http://" + ":" * 1_000_000])  # the last one would take hours where a pattern backtracks
    worker = mongoq.Worker(broker)
    worker.consumer(queue)(fail)
    worker.run(drain=True)
    messages = [record.getMessage() for record in caplog.records if "has failed" in record.getMessage()]
    assert len(messages) == len(SHOWN) + 1
    for text, shown in SHOWN.items():
        assert any(f"ConnectionError: {shown};" in message for message in messages), messages
        assert (text in caplog.text) == (text == shown)
