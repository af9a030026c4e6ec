"""Property 2 for graphs: an update is `mixing_matrix(round) @ x + u`, wherever workers are."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import BACKENDS, PLACEMENTS, communicate, placement

import gossip_jax as gj
from gossip_jax import absence

graphs = gj.graphs
KEY = gj.keys.run_key(4)

REPEATED = (
    "a ring of two",
    "a chain",
    "a matching",
    "a static exponential graph",
    "peers over matchings",
)

# A law on a graph each, where to run it, and the order of mixing: the properties do not depend on each
# other, so that every graph, law and place is there, and not every combination of them.
SITUATIONS = {
    "a ring, all at once": (lambda: gj.every(graphs.ring(5)), "pmap", "awc"),
    "a ring of two": (lambda: gj.every(graphs.ring(2)), "shard_map", "atc"),
    "a single worker": (lambda: gj.every(graphs.ring(1)), "pmap", "awc"),
    "a chain": (lambda: gj.at_random(graphs.chain(4), 1.0), "two a device", "atc"),
    "a star, all at once": (lambda: gj.every(graphs.star(5)), "shard_map", "awc"),
    "a torus": (lambda: gj.every(graphs.torus(2, 4)), "two a device", "awc"),
    "a hypercube": (lambda: gj.in_turn(graphs.hypercube(4)), "pmap", "atc"),
    "a static exponential graph": (lambda: gj.every(graphs.exponential(8)), "two a device", "atc"),
    "a one-peer exponential graph": (lambda: gj.in_turn(graphs.exponential(3)), "pmap", "awc"),
    "a one-peer graph, two a device": (
        lambda: gj.in_turn(graphs.exponential(8)),
        "two a device",
        "awc",
    ),
    "a complete graph": (lambda: gj.every(graphs.complete(3)), "shard_map", "atc"),
    "a matching": (lambda: gj.at_random(graphs.complete(8, "matchings"), 1.0), "two a device", "awc"),
    "pairs of a base graph": (lambda: gj.in_turn(graphs.base(5)), "pmap", "atc"),
    "groups of a base graph": (lambda: gj.in_turn(graphs.base(6, k=2)), "two a device", "awc"),
    "groups by chance": (lambda: gj.at_random(graphs.base(5, k=2), 1.0), "shard_map", "awc"),
    "any edges": (
        lambda: gj.every(graphs.from_edges(5, [(0, 1), (1, 2), (1, 4), (2, 3)])),
        "vmap",
        "atc",
    ),
    "peers": (lambda: gj.uniform_peers(5, 0.9), "pmap", "awc"),
    "peers over matchings": (
        lambda: gj.uniform_peers(6, 0.9, routes="matchings"),
        "two a device",
        "atc",
    ),
    "pairs of many": (lambda: gj.pairing(8, 1.0, among="compiled"), "two a device", "atc"),
}


def values(rng: np.random.Generator, num_workers: int) -> Any:
    """A leaf that is sent by itself, and two that are packed."""
    shapes = {"large": (200, 201), "small": (3, 4), "scalar": ()}
    return {
        name: rng.uniform(-1, 1, (num_workers, *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def mixed(round: gj.Round, x: np.ndarray) -> np.ndarray:
    matrix = np.asarray(gj.mixing_matrix(round), np.float64)
    return np.einsum("ik,k...->i...", matrix, x)


def expected(order: str, round: gj.Round, params: Any, updates: Any) -> Any:
    if order == "awc":
        return jax.tree.map(lambda p, u: mixed(round, p) + u, params, updates)
    return jax.tree.map(lambda p, u: mixed(round, p + u), params, updates)


def check(draw: gj.Draw, where: Any, order: Any, rng: np.random.Generator, updates_of: Any = 3) -> None:
    place = placement(where, draw.num_workers)
    move = communicate(gj.dpsgd(order), place)
    params, updates = values(rng, draw.num_workers), values(rng, draw.num_workers)
    alike = jax.tree.map(lambda leaf: np.broadcast_to(leaf[:1], leaf.shape).copy(), (params, updates))
    for step in range(1, updates_of + 1):
        round = draw(KEY, step)
        found = jax.device_get(move(params, updates, round))
        want = expected(order, round, params, updates)
        # At most eight terms of up to 2, each rounded.
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=4e-6), found, want)
        kept = jax.device_get(move(*alike, round))
        jax.tree.map(lambda a, p, u: np.testing.assert_array_equal(a, p + u), kept, *alike)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in REPEATED else n for n in SITUATIONS]
)
def test_an_update_is_the_mixing_matrix_times_the_replicas_and_those_that_agree_stay_so(name, rng):
    make, where, order = SITUATIONS[name]
    check(make(), where, order, rng)


@pytest.mark.slow
@pytest.mark.parametrize("where", PLACEMENTS)
@pytest.mark.parametrize("num_workers", [2, 3, 4, 8])
def test_an_update_is_the_mixing_matrix_times_the_replicas_on_all_graphs(num_workers, where, rng):
    """The product of what `SITUATIONS` has one combination each of."""
    if where == "two a device" and num_workers % 2:
        pytest.skip("an odd number of workers cannot be two a device")
    families = (
        graphs.ring,
        graphs.chain,
        graphs.star,
        graphs.exponential,
        graphs.complete,
        graphs.base,
    )
    for family, law in itertools.product(families, ("every", "in_turn", "at_random")):
        graph = family(num_workers)
        if law == "every" and family is not graphs.base:
            check(gj.every(graph), where, "awc", rng, 1)
        elif law == "in_turn":
            check(gj.in_turn(graph), where, "atc", rng, 2)
        elif law == "at_random":
            check(gj.at_random(graph, 0.7), where, "awc", rng, 2)


def by_hand(graph: gj.Graph, used: np.ndarray, away: np.ndarray) -> np.ndarray:
    """The matrix from the graph's documented arrays, in plain loops."""
    turns = {int(graph.turns[e]) for e in range(graph.num_routes) if used[e]}
    weights = graph.turn_weights if len(turns) == 1 else graph.weights
    matrix = np.eye(graph.num_workers)
    for e, i in itertools.product(range(graph.num_routes), range(graph.num_workers)):
        source = graph.sources[e, i]
        if used[e] and source != i and not away[i] and not away[source]:
            matrix[i, source] += weights[e, i]
            matrix[i, i] -= weights[e, i]
    return matrix


@pytest.mark.parametrize(
    "graph",
    [graphs.exponential(5), graphs.star(4), graphs.base(6, k=2), graphs.complete(2), graphs.ring(1)],
    ids=str,
)
def test_the_mixing_matrix_is_made_of_the_weights_of_routes_in_use_by_those_who_are_there(graph, rng):
    """Who is missing leaves its weight to who would have heard from it, so that rows still sum to 1."""
    used = rng.random((12, graph.num_routes)) < 0.5
    used[:2] = [[False], [True]]
    away = rng.random((12, graph.num_workers)) < 0.3
    for absent in (np.zeros_like(away), away):
        stacked = absence.without(gj.Round.of_routes(graph, used), absent)
        found = np.asarray(gj.mixing_matrix(stacked))
        for row, matrix in enumerate(found):
            np.testing.assert_allclose(matrix, by_hand(graph, used[row], absent[row]), atol=1e-6)
        np.testing.assert_allclose(found.sum(axis=2), 1, atol=1e-6)
        one = absence.without(gj.Round.of_routes(graph, used[3]), absent[3])
        np.testing.assert_allclose(gj.mixing_matrix(one), found[3], atol=1e-6)


def test_peers_are_mixed_with_metropolis_hastings_weights():
    """0 and 1 pick 2: it has two contacts, they have one each, and all weights are 1 / (1 + 2)."""
    third = 1 / 3
    want = [[2 * third, 0, third, 0], [0, 2 * third, third, 0], [third] * 3 + [0], [0, 0, 0, 1]]
    np.testing.assert_allclose(gj.mixing_matrix(gj.Round([2, 2, -1, -1])), want, atol=1e-6)


@pytest.mark.parametrize("where", ["vmap", "pmap", "two a device"])
def test_nobody_takes_the_replica_of_a_worker_that_sits_out_on_a_graph(where, rng):
    """Nor does it move, and who is absent may be anything, NaN too. On one-way routes as well."""
    graph = graphs.exponential(4)
    absent = np.array([False, True, False, False])
    params, updates = rng.uniform(-1, 1, (2, 4, 9)).astype(np.float32)
    params[1] = np.nan
    for make in (gj.dpsgd, lambda: gj.gossiping_sgd("push")):
        round = absence.without(gj.every(graph)(KEY, 1), absent)
        found = np.asarray(communicate(make(), placement(where, 4))(params, updates, round))
        assert np.isnan(found[1]).all()
        assert np.isfinite(found[[0, 2, 3]]).all()
        # 3 hears from 0 only, 0 from 2, 2 from 3 and 0: i hears from i + 1 and i + 2.
        if make is gj.dpsgd:
            want = np.nan_to_num(params) + updates
            for i, source in ((3, 0), (0, 2), (2, 3), (2, 0)):
                want[i] += (params[source] - params[i]) / 3
            np.testing.assert_allclose(found[[0, 2, 3]], want[[0, 2, 3]], rtol=0, atol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_elastic_gossip_goes_both_ways_on_a_graph_and_is_refused_on_one_way_routes(backend, rng):
    """One direction of a ring in use is both: the two of a pair move, by opposite amounts."""
    theta = rng.uniform(-1, 1, (5, 8)).astype(np.float32)
    move = communicate(gj.elastic_gossip(0.3), gj.place(5, backend))
    for graph, used in ((graphs.ring(5), [True, False]), (graphs.star(5), [False, True, True, False])):
        found = np.asarray(move(theta, 0 * theta, gj.Round.of_routes(graph, np.array(used))), float)
        want = theta.astype(float)
        pairs = {tuple(sorted(p)) for e in np.flatnonzero(used) for p in graph.pairs(int(e))}
        for one, other in pairs:
            want[one] -= 0.3 * (theta[one] - theta[other])
            want[other] -= 0.3 * (theta[other] - theta[one])
        np.testing.assert_allclose(found, want, rtol=0, atol=2e-6)
        np.testing.assert_allclose(found.sum(axis=0), theta.sum(axis=0, dtype=float), atol=4e-6)
    with pytest.raises(ValueError, match=r"exponential\(5\) is directed\. Use an undirected graph"):
        move(theta, 0 * theta, gj.every(graphs.exponential(5))(KEY, 1))


@pytest.mark.parametrize("where", ["vmap", "pmap", "two a device"])
def test_gossiping_sgd_goes_one_way_on_a_graph(where, rng):
    """Pull halves the way to the one source in use; push takes the mean of all that it is sent."""
    theta = rng.uniform(-1, 1, (4, 8)).astype(np.float32)
    graph = graphs.exponential(4)
    place = placement(where, 4)
    one = gj.in_turn(graph)(KEY, 2)  # from i + 2
    pulled = communicate(gj.gossiping_sgd("pull"), place)(theta, 0 * theta, one)
    np.testing.assert_allclose(pulled, (theta + np.roll(theta, -2, axis=0)) / 2, rtol=0, atol=2e-6)
    both = gj.every(graph)(KEY, 1)
    pushed = communicate(gj.gossiping_sgd("push"), place)(theta, 0 * theta, both)
    sent = theta + np.roll(theta, -1, axis=0) + np.roll(theta, -2, axis=0)
    np.testing.assert_allclose(pushed, sent / 3, rtol=0, atol=2e-6)
    with pytest.raises(ValueError, match=r"with 'pull' a worker fetches from one peer in a round"):
        communicate(gj.gossiping_sgd("pull"), place)(theta, 0 * theta, both)


def test_elastic_gossip_at_half_rate_on_a_full_matching_is_one_peer_dpsgd(rng):
    """https://arxiv.org/abs/1705.09056 with weights ½ on a perfect matching."""
    theta, updates = rng.uniform(-1, 1, (2, 4, 8)).astype(np.float32)
    round = gj.Round([1, 0, 3, 2])
    place = gj.place(4, "vmap")
    elastic, mixing = (communicate(p, place) for p in (gj.elastic_gossip(0.5), gj.dpsgd()))
    np.testing.assert_array_equal(elastic(theta, updates, round), mixing(theta, updates, round))


@pytest.mark.parametrize("wire_dtype", ["bfloat16", "float16"])
def test_dpsgd_keeps_sum_and_agreement_with_a_narrow_wire(wire_dtype, rng):
    theta, updates = rng.uniform(-1, 1, (2, 5, 8)).astype(np.float32)
    round = gj.every(graphs.ring(5))(KEY, 1)
    move = communicate(gj.dpsgd(wire_dtype=wire_dtype), gj.place(5, "pmap"))
    found = np.asarray(move(theta, updates, round), np.float64)
    np.testing.assert_allclose(found.sum(axis=0), (theta + updates).sum(axis=0), rtol=0, atol=1e-5)
    alike = np.broadcast_to(theta[:1], theta.shape)
    np.testing.assert_array_equal(move(alike, updates, round), alike + updates)


def test_a_round_of_another_graph_than_the_axis_has_workers_is_refused():
    protocol = gj.dpsgd()
    x = jnp.zeros((4, 3))
    with pytest.raises(
        ValueError, match=r"axis 'workers' has 4 workers, and the round is of 5, on ring"
    ):
        communicate(protocol, gj.place(4, "vmap"))(x, x, gj.every(graphs.ring(5))(KEY, 1))
    with pytest.raises(ValueError, match="order must be 'awc' or 'atc'; got 'cta'"):
        gj.dpsgd("cta")  # pyright: ignore[reportArgumentType]
