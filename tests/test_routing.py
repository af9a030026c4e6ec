"""Which way a route goes, and over which devices: what a swap of two cannot tell."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import PLACEMENTS, placement

import gossip_jax as gj
from gossip_jax import exchange
from gossip_jax.graphs.routing import ways
from gossip_jax.rounds import all_routes


def shift(num_workers: int, by: int) -> gj.Graph:
    """Everybody receives from `by` workers before it."""
    sources = (np.arange(num_workers) - by) % num_workers
    return gj.Graph(f"shift({num_workers}, {by})", [sources], np.ones((1, num_workers)))


def received(tree: Any, round: gj.Round, place: gj.Placement) -> Any:
    """What each worker is handed on the last route in use; NaN where nothing is."""

    def theirs(tree: Any, round: gj.Round) -> Any:
        nothing = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), tree)
        return exchange.receive(
            tree, round, "workers", lambda total, mine, theirs, route: theirs, nothing
        )

    return jax.device_get(place.map(theirs, (0, None))(tree, round))


def check_shift(num_workers: int, by: int, place: gj.Placement, rng: np.random.Generator) -> None:
    tree = {
        "large": rng.normal(size=(num_workers, 200, 201)).astype(np.float32),
        "small": rng.normal(size=(num_workers, 3)).astype(np.float32),
        "narrow": rng.normal(size=(num_workers, 5)).astype(jnp.bfloat16),
    }
    graph = shift(num_workers, by)
    known = all_routes(graph, 1)
    chosen = gj.Round.of_routes(graph, np.array([True]))
    for round in (known, chosen):  # without a conditional, and with one
        for name, leaf in received(tree, round, place).items():
            np.testing.assert_array_equal(leaf, np.roll(tree[name], by, axis=0), err_msg=name)


@pytest.mark.parametrize("by", [1, 2])
@pytest.mark.parametrize("backend", ["vmap", "pmap", "shard_map"])
def test_three_workers_receive_from_the_one_before(backend, by, rng):
    check_shift(3, by, gj.place(3, backend), rng)


@pytest.mark.parametrize(
    ("num_workers", "num_devices", "by"), [(4, 2, 1), (6, 3, 1), (6, 2, 2), (6, 3, 5)]
)
def test_workers_that_share_devices_receive_from_the_one_before(num_workers, num_devices, by, rng):
    place = gj.place(num_workers, devices=jax.devices()[:num_devices])
    assert place.workers_per_device == num_workers // num_devices
    check_shift(num_workers, by, place, rng)


def test_three_workers_receive_from_the_one_before_where_cpus_of_processes_do(rng, monkeypatch):
    """The path of several processes, forced in one: test_backends_agree.py has real ones."""
    monkeypatch.setattr(exchange, "_has_several_processes", lambda: True)
    check_shift(3, 1, gj.place(3, "pmap"), rng)
    check_shift(6, 1, gj.place(6, devices=jax.devices()[:3]), rng)


@pytest.mark.parametrize("where", PLACEMENTS)
def test_sources_are_handed_over_in_the_order_of_the_routes(where, rng):
    """A combination that depends on the order, over all routes, some, and one: digits of a number."""
    graph = gj.graphs.exponential(4)
    own = 1.0 + np.arange(4, dtype=np.float32)[:, None]

    def digits(theta: Any, round: gj.Round) -> Any:
        def append(total, mine, theirs, route):
            return 10 * total + theirs

        return exchange.receive(theta, round, "workers", append, jnp.zeros_like(theta))

    run = placement(where, 4).map(digits, (0, None))
    for used in ([True, True], [False, True], [True, False], [False, False]):
        for round in (
            gj.Round.of_routes(graph, np.array(used)),
            gj.Round.of_routes(graph, np.array(used), num_routes=range(sum(used), sum(used) + 1)),
        ):
            want = np.zeros_like(own)
            for e in np.flatnonzero(used):
                want = 10 * want + own[graph.sources[e]]
            np.testing.assert_array_equal(run(own, round), want)


@pytest.mark.parametrize(
    ("graph", "num_devices"),
    [
        (gj.graphs.complete(8, "matchings"), 4),
        (gj.graphs.exponential(8), 2),
        (gj.graphs.base(6, k=2), 3),
        (gj.graphs.star(6), 2),
        (shift(9, 4), 3),
        (shift(4, 1), 1),
    ],
    ids=str,
)
def test_the_hops_of_a_route_bring_each_worker_its_source_in_as_few_as_there_can_be(graph, num_devices):
    """Played on NumPy: what is on a device is not sent, and no device sends or receives twice a hop."""
    num_replicas = graph.num_workers // num_devices
    device = np.arange(graph.num_workers) // num_replicas
    found = ways(graph, num_devices)
    for route, sources in enumerate(graph.sources):
        held = device * num_replicas + found.local[route]
        is_remote = device[sources] != device
        for hop, permutation in enumerate(found.permutations[route]):
            senders, receivers = zip(*permutation, strict=True) if permutation else ((), ())
            assert len(set(senders)) == len(senders)
            assert len(set(receivers)) == len(receivers)
            assert set(np.flatnonzero(found.taken[route, hop] >= 0)) == set(receivers)
            for sender, receiver in permutation:
                into = receiver * num_replicas + found.taken[route, hop, receiver]
                assert is_remote[into], "what is on a device is not sent"
                held[into] = sender * num_replicas + found.sent[route, hop, sender]
        np.testing.assert_array_equal(held, sources)
        busiest = max(np.bincount(device[sources[is_remote]], minlength=1))
        assert sum(map(bool, found.permutations[route])) == busiest, "as few hops as there can be"
