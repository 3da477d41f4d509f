"""Which nodes run which units: apart from each other, in different zones, and with about the same to do."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import PipelineError
from anabranch.placement import Host, check_nodes, placed

NAMES = st.integers(1, 8).map(lambda count: [f"node-{number}" for number in range(count)])


@st.composite
def situations(draw):
    """Draw nodes, some in zones, and units with leaders that are there, are not, or do not exist."""
    names = draw(NAMES)
    hosts = [Host(name, draw(st.sampled_from([None, "a", "b", "c"]))) for name in names]
    copies = draw(st.dictionaries(st.sampled_from("uvwxyz"), st.integers(1, 4), min_size=1))
    leaders = {unit: draw(st.sampled_from([None, "gone", *names])) for unit in copies}
    return copies, hosts, leaders


@given(situations())
def test_replicas_are_apart(situation):
    """Never two on one node; as many as asked for, or as there are nodes; the leader is one of them."""
    copies, hosts, leaders = situation
    found = placed(copies, hosts, leaders)
    for unit, chosen in found.items():
        assert len(set(chosen)) == len(chosen) == min(copies[unit], len(hosts))
        assert leaders[unit] not in {host.name for host in hosts} or chosen[0] == leaders[unit]


@given(situations())
def test_no_zone_is_shared_as_long_as_there_are_others(situation):
    """A replica goes into a zone that has one already only if there is no node in another."""
    copies, hosts, leaders = situation
    zone_of = {host.name: host.zone for host in hosts}
    for chosen in placed(copies, hosts, leaders).values():
        for number, name in enumerate(chosen[1:], 1):
            before = {zone_of[other] for other in chosen[:number]} - {None}
            free = [host for host in hosts if host.name not in chosen[:number] and host.zone not in before]
            assert zone_of[name] not in before or not free


@given(situations(), st.randoms())
def test_every_node_comes_to_the_same(situation, chance):
    """Whatever the order in which a node knows the others."""
    copies, hosts, leaders = situation
    other = sorted(hosts, key=lambda _: chance.random())
    assert placed(copies, hosts, leaders) == placed(copies, other, leaders)


@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 30))
def test_load_is_balanced(nodes, count, units):
    """Of nodes that are alike, none runs more than one replica more than another."""
    hosts = [Host(f"node-{number}") for number in range(nodes)]
    found = placed({f"u{number}": min(count, nodes) for number in range(units)}, hosts, {})
    load = Counter(dict.fromkeys((host.name for host in hosts), 0)) + Counter(
        n for some in found.values() for n in some
    )
    busiest = max(load.values())
    assert busiest - min(load.get(host.name, 0) for host in hosts) <= 1


def test_too_few_nodes_are_refused():
    """With what is missing."""
    check_nodes({"counts": 3}, 3)
    with pytest.raises(PipelineError, match="needs 3 nodes to survive the loss of 2, and has 2") as refused:
        check_nodes({"counts": 3}, 2)
    assert "--nodes 3" in refused.value.hint
    assert "KSafe(1)" in refused.value.hint
    with pytest.raises(PipelineError) as alone:
        check_nodes({"counts": 2}, 1)
    assert "KSafe" not in alone.value.hint
