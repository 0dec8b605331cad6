"""Where reads go: the option wins over the URI, and keeps its tags."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import monitoring

from mongoq.errors import ArgumentInvalid
from mongoq.spark.read.read_options import ReadOptions
from mongoq.spark.scan import Scan

GOOD = {"uri": "mongodb://localhost", "queue": "orders"}


@pytest.mark.parametrize("name", ["primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"])
def test_the_option_comes_before_the_uri(name: str) -> None:
    options = ReadOptions.parse(GOOD | {"READPREFERENCE": name.upper()})
    uri = "mongodb://localhost/?readPreference=secondary&readPreferenceTags=dc:ny&maxStalenessSeconds=120"
    with Scan(uri, "app", "mongoq", preference=options.preference) as scan:
        preference = scan._collection.read_preference
        assert preference.mongos_mode == name
        assert preference.tag_sets == ([{}] if name == "primary" else [{"dc": "ny"}])
        assert preference.max_staleness == (-1 if name == "primary" else 120)
        assert scan._collection.read_concern.level == "majority"


def test_without_it_the_uri_says(store: Any) -> None:
    assert ReadOptions.parse(GOOD).preference is None
    with Scan("mongodb://localhost/?readPreference=nearest", "app", "mongoq", preference=None) as scan:
        assert scan._collection.read_preference.mongos_mode == "nearest"
    with Scan("mongodb://localhost", "app", "mongoq", preference="nearest") as scan:
        assert scan._collection.read_preference.tag_sets == [{}]


@pytest.mark.parametrize("name", ["", "second", "nearest "])
def test_others_are_refused(name: str) -> None:
    words = "readPreference: one of primary, primaryPreferred, secondary, secondaryPreferred, nearest, not"
    with pytest.raises(ArgumentInvalid, match=words):
        ReadOptions.parse(GOOD | {"readPreference": name})


class Watch(monitoring.CommandListener):
    def __init__(self) -> None:
        self.modes: dict[str, Any] = {}

    def started(self, event: Any) -> None:
        self.modes[event.command_name] = event.command.get("$readPreference", {}).get("mode", "primary")

    def succeeded(self, event: Any) -> None:
        pass

    def failed(self, event: Any) -> None:
        pass


def test_planning_and_reading_go_there(store: Any, reader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    import mongoq.spark.scan as scans

    watch = Watch()
    monkeypatch.setattr(scans, "MongoClient", partial(scans.MongoClient, event_listeners=[watch]))
    store.add_many(20)
    for options, mode in (({}, "primary"), ({"readPreference": "secondaryPreferred"}, "secondaryPreferred")):
        watch.modes.clear()
        source = reader(partitions=2, **options)
        assert sum(batch.num_rows for each in source.partitions() for batch in source.read(each)) == 20
        modes = {
            name: preference for name, preference in watch.modes.items() if name not in ("endSessions", "listIndexes")
        }
        assert {"find", "aggregate", "count"} <= set(modes)
        # with one server known a client asks for primaryPreferred, so that it may be a secondary
        assert set(modes.values()) <= {mode, "primaryPreferred"}
        assert modes["find"] == mode
