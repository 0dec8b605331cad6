"""The same graph on every engine: the same outputs and errors, each once."""

from __future__ import annotations

from tests.pipeline.conftest import Site, counted, every_engine
from tests.pipeline.graphs import ERRORS, OUT, RAW, graph, inputs, outputs

NUMBER = 100


@every_engine
def test_the_same_graph_makes_the_same_of_the_same_inputs(site: Site) -> None:
    ids = site.queue(RAW).push_many(inputs(NUMBER))
    site.drain(graph())
    out, errors = outputs(NUMBER)
    assert counted(site.payloads(OUT)) == counted(out)
    assert counted(site.payloads(ERRORS)) == counted(errors)
    assert site.broker.queues() == sorted([OUT, ERRORS])
    items = site.queue(OUT).peek(NUMBER) + site.queue(ERRORS).peek(NUMBER)
    assert {item.id for item in items} <= set(ids)
    assert len({item.id for item in items}) == len(items)
    for item in items:  # each tells where it was
        assert [hop.to for hop in item.trail][:-1] == [hop.queue for hop in item.trail][1:]
        assert item.trail[0].queue == RAW
        assert item.trail[-1].to == item.queue
