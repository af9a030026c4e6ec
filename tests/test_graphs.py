"""Graphs: what their matrices do, against formulas from the literature; and how they are held.

Sources: the table in Ying et al. (https://arxiv.org/abs/2110.13363) for rings and exponential graphs,
Takezawa et al. (https://arxiv.org/abs/2305.11420) for Base-(k+1); eigenvalues of circulant graphs, of
stars and of hypercubes are worked out in the comments.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gossip_jax as gj
from gossip_jax.graphs import measures

WORKERS = (1, 2, 3, 5, 8)
FAMILIES = {
    "ring": gj.graphs.ring,
    "chain": gj.graphs.chain,
    "star": gj.graphs.star,
    "exponential": gj.graphs.exponential,
    "complete": gj.graphs.complete,
    "matchings": functools.partial(gj.graphs.complete, routes="matchings"),
    "base": gj.graphs.base,
    "base of three": functools.partial(gj.graphs.base, k=2),
}
GRAPHS = {
    **{f"{name}({w})": family(w) for name, family in FAMILIES.items() for w in WORKERS},
    **{f"hypercube({w})": gj.graphs.hypercube(w) for w in (1, 2, 4, 8, 16)},
    **{f"torus{s}": gj.graphs.torus(*s) for s in ((1, 1), (1, 5), (2, 1), (2, 2), (3, 2), (3, 4))},
    "edges": gj.graphs.from_edges(5, [(0, 1), (1, 2), (2, 0), (4, 3), (1, 4), (1, 0)]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_round_is_doubly_stochastic_and_a_period_connects_everybody(name, rng):
    """So the mean over workers is kept, and all come to it."""
    graph = GRAPHS[name]
    matrices = measures.mixing_matrices(graph)
    x = rng.normal(size=graph.num_workers)
    reaches = np.eye(graph.num_workers)
    for matrix in matrices:
        np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-12)
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)
        assert (matrix > -1e-12).all(), "weights are those of a mean"
        assert math.isclose((matrix @ x).mean(), x.mean(), abs_tol=1e-12)
        reaches = (matrix > 0) @ reaches
    assert (np.linalg.matrix_power(reaches, graph.num_workers) > 0).all(), "connected"
    assert gj.graphs.spectral_gap(graph) > 0


@pytest.mark.parametrize("name", GRAPHS)
def test_one_route_after_the_other_is_doubly_stochastic_too(name):
    graph = GRAPHS[name]
    for turn in map(graph.turn, range(graph.num_turns)):
        matrix = measures.mixing_matrix_of(turn, turn.weights)
        np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-12)
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)
        assert (matrix > -1e-12).all()


def eigenvalue_of_circulant(num_workers: int, hops: list[int]) -> float:
    """The second largest |λ_m| = |1 + Σ_h exp(2πi m h / W)| / (1 + number of hops), m = 1 to W - 1."""
    angles = 2 * np.pi * np.arange(1, num_workers)[:, None] * np.array(hops) / num_workers
    sums = 1 + np.exp(1j * angles).sum(axis=1)
    return float(np.abs(sums).max() / (1 + len(hops)))


@pytest.mark.parametrize("num_workers", [2, 3, 4, 5, 8, 16, 25])
def test_spectral_gaps_are_those_of_the_literature(num_workers):
    w = num_workers
    known = {
        # At W = 2 the two neighbours are one, and both take the mean.
        gj.graphs.ring(w): 1.0 if w == 2 else 1 - (1 + 2 * math.cos(2 * math.pi / w)) / 3,
        # W = I - L / W, and the Laplacian of a star has eigenvalues 0, 1 and W.
        gj.graphs.star(w): 1.0 if w == 2 else 1 / w,
        gj.graphs.complete(w): 1.0,
        gj.graphs.exponential(w): 1
        - eigenvalue_of_circulant(w, [2**b for b in range(math.ceil(math.log2(w)))]),
        gj.graphs.base(w): 1.0,
    }
    for graph, gap in known.items():
        assert gj.graphs.spectral_gap(graph) == pytest.approx(gap, abs=1e-9), graph
    bits = math.ceil(math.log2(w))
    assert gj.graphs.spectral_gap(gj.graphs.exponential(w)) >= 2 / (1 + bits) - 1e-9
    if w == 2**bits:
        # Eigenvalues 1 - 2 m / (1 + d), m = 0 to d: the largest but one and the smallest are opposite.
        for graph in (gj.graphs.exponential(w), gj.graphs.hypercube(w)):
            assert gj.graphs.spectral_gap(graph) == pytest.approx(2 / (1 + bits), abs=1e-9), graph


def test_a_torus_has_the_gap_of_its_longer_side():
    """Its eigenvalues are (1 + 2 cos(2π a / r) + 2 cos(2π b / c)) / 5: the largest for a = 0, b = 1."""
    for rows, columns in ((3, 3), (3, 4), (5, 5), (4, 8)):
        longer = max(rows, columns)
        gap = 2 * (1 - math.cos(2 * math.pi / longer)) / 5
        least = (
            abs(
                1
                + 2 * np.cos(2 * np.pi * (rows // 2) / rows)
                + 2 * np.cos(np.pi * 2 * (columns // 2) / columns)
            )
            / 5
        )
        gap = min(gap, 1 - least)
        assert gj.graphs.spectral_gap(gj.graphs.torus(rows, columns)) == pytest.approx(gap, abs=1e-9)


def test_neighbours_are_weighed_once_where_sides_are_short():
    ring, torus = gj.graphs.ring, gj.graphs.torus
    assert (ring(1).num_routes, ring(2).num_routes, ring(3).num_routes) == (0, 1, 2)
    np.testing.assert_array_equal(ring(2).weights, [[0.5, 0.5]])
    assert torus(1, 1).num_routes == 0
    for short, long in ((torus(1, 5), ring(5)), (torus(5, 1), ring(5)), (torus(1, 2), ring(2))):
        np.testing.assert_array_equal(short.sources, long.sources)
        np.testing.assert_array_equal(short.weights, long.weights)
    for sides, neighbours in (((2, 2), 2), ((2, 3), 3), ((3, 2), 3), ((3, 3), 4)):
        graph = torus(*sides)
        assert graph.num_routes == neighbours
        np.testing.assert_allclose(graph.weights, 1 / (1 + neighbours))
        off = [set(row) for row in graph.sources.T.tolist()]
        assert all(len(sources) == neighbours for sources in off), "each neighbour once"
    for graph in (gj.graphs.chain(1), gj.graphs.star(1), gj.graphs.exponential(1), gj.graphs.base(1)):
        assert graph.num_routes == 0
        assert gj.graphs.spectral_gap(graph) == 1
        assert gj.graphs.rounds_to_consensus(graph) == 0
        assert gj.graphs.messages_per_worker(graph) == 0


PERIODS = dict(zip(range(2, 17), (1, 3, 2, 5, 4, 5, 3, 7, 6, 7, 5, 7, 6, 7, 4), strict=True))
PERIODS |= {17: 9, 20: 7, 24: 6, 25: 9, 32: 5, 33: 11}  # of Base-2, from the authors' own program


@pytest.mark.parametrize("k", [1, 2, 3])
def test_base_graphs_average_exactly_after_a_period(k):
    for num_workers in range(2, 34):
        graph = gj.graphs.base(num_workers, k)
        product = np.eye(num_workers)
        for matrix in measures.mixing_matrices(graph):
            np.testing.assert_array_equal(matrix, matrix.T)
            assert ((matrix > 0).sum(axis=1) <= k + 1).all(), "each talks to k others at most"
            product = matrix @ product
        np.testing.assert_allclose(product, 1 / num_workers, rtol=0, atol=1e-12)
        if k == 1 and num_workers in PERIODS:
            assert graph.num_turns == PERIODS[num_workers]
        if k > 1:
            assert graph.num_turns <= gj.graphs.base(num_workers).num_turns


def product_of_turns(graph: gj.Graph) -> np.ndarray:
    turns = [graph.turn(turn) for turn in range(graph.num_turns)]
    matrices = [measures.mixing_matrix_of(turn, turn.weights) for turn in turns]
    return functools.reduce(lambda product, matrix: matrix @ product, matrices)


def test_one_peer_exponential_graphs_and_hypercubes_are_exact_for_powers_of_two_only():
    for num_workers in (2, 4, 8, 16):
        for family in (gj.graphs.exponential, gj.graphs.hypercube):
            np.testing.assert_allclose(product_of_turns(family(num_workers)), 1 / num_workers)
    for num_workers in (3, 6):
        away = product_of_turns(gj.graphs.exponential(num_workers)) - 1 / num_workers
        assert 0.01 < np.linalg.norm(away, 2) < 1, "not exact, and still nearer"


def check_edges(graph: gj.Graph, edges: set[tuple[int, int]]) -> None:
    """Routes are matchings that hold each edge once, weighed by Metropolis-Hastings."""
    degree = np.bincount(np.array([*edges], int).ravel(), minlength=graph.num_workers)
    assert graph.num_routes <= degree.max(initial=0) + 1
    np.testing.assert_array_equal(
        np.take_along_axis(graph.sources, graph.sources, axis=1),
        np.broadcast_to(np.arange(graph.num_workers), graph.sources.shape),
    )
    listed = [pair for e in range(graph.num_routes) for pair in graph.pairs(e) if pair[0] < pair[1]]
    assert sorted(listed) == sorted(edges)
    want = np.eye(graph.num_workers)
    for one, other in edges:
        weight = 1 / (1 + max(degree[one], degree[other]))
        want[[one, other], [other, one]] = weight
        want[[one, other], [one, other]] -= weight
    np.testing.assert_allclose(measures.mixing_matrix_of(graph, graph.weights), want, atol=1e-12)


def test_any_edges_become_few_matchings_with_metropolis_hastings_weights():
    rng = np.random.default_rng(3)
    for _ in range(150):
        num_workers = int(rng.integers(1, 12))
        pairs = [*itertools.combinations(range(num_workers), 2)]
        chosen = [pair for pair in pairs if rng.random() < rng.random()]
        turned = [pair[:: rng.choice((1, -1))] for pair in rng.permutation(chosen).tolist()]
        check_edges(gj.graphs.from_edges(num_workers, turned), set(chosen))


class LikeNetworkx:
    """What networkx offers, as far as it is used: a view of edges that is iterable and callable."""

    class Edges(list):
        def __call__(self):
            return self

    edges = Edges([(0, 1), (1, 2), (3, 1)])


def test_a_graph_of_networkx_is_read_by_its_edges():
    check_edges(gj.graphs.from_edges(4, LikeNetworkx()), {(0, 1), (1, 2), (1, 3)})


def test_a_real_graph_of_networkx_is_read_by_its_edges():
    networkx = pytest.importorskip("networkx", reason="networkx is not installed, nor needed")
    petersen = networkx.petersen_graph()
    edges = {(min(edge), max(edge)) for edge in petersen.edges}
    graph = gj.graphs.from_edges(10, petersen)
    check_edges(graph, edges)
    assert graph.num_routes == 4, "the Petersen graph is of degree 3 and no three matchings cover it"


def test_edges_that_are_given_twice_or_turned_count_once():
    graph = gj.graphs.from_edges(3, [(0, 1), (1, 0), (0, 1), (np.int64(2), 1)])
    check_edges(graph, {(0, 1), (1, 2)})


@pytest.mark.parametrize("edge", [(0, 0), (0, 4), (-1, 1), (0, 1, 2), (0.5, 1), "ab", 7])
def test_an_edge_that_is_not_between_two_workers_is_refused(edge):
    with pytest.raises(ValueError, match="an edge is a pair of two different workers, 0 to 3; got"):
        gj.graphs.from_edges(4, [(1, 2), edge])


def test_rounds_to_consensus_and_messages_are_those_that_can_be_counted():
    """After one round where the mean is exact; W - 1 messages to all, as from the hub of a star."""
    assert gj.graphs.rounds_to_consensus(gj.graphs.complete(8)) == 1
    assert gj.graphs.rounds_to_consensus(gj.graphs.base(25)) == PERIODS[25]
    # λ2^t <= 0.01 where a round multiplies what is left by λ2, for a symmetric matrix.
    ring = (1 + 2 * math.cos(2 * math.pi / 16)) / 3
    want = math.ceil(math.log(0.01) / math.log(ring))
    assert gj.graphs.rounds_to_consensus(gj.graphs.ring(16)) == want
    assert gj.graphs.rounds_to_consensus(gj.graphs.from_edges(3, [(0, 1)])) is None, "not connected"
    assert gj.graphs.spectral_gap(gj.graphs.from_edges(3, [(0, 1)])) == pytest.approx(0, abs=1e-12)
    sent = gj.graphs.messages_per_worker
    for family, messages in (
        ("ring", 2),
        ("star", 7),
        ("complete", 7),
        ("exponential", 3),
        ("base", 1),
    ):
        assert sent(FAMILIES[family](8)) == messages, family
    for share in (0, 1, -1, 2):
        with pytest.raises(ValueError, match=r"share must be in \(0, 1\)"):
            gj.graphs.rounds_to_consensus(gj.graphs.ring(3), share)


def test_graphs_with_the_same_content_are_equal_hashable_and_static():
    one = gj.graphs.from_edges(4, [(0, 1), (1, 2)])
    same = gj.graphs.from_edges(4, [(0, 1), (1, 2)])
    other = gj.graphs.from_edges(4, [(0, 1), (1, 3)])
    assert one is not same
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != "from_edges(4, 2 edges)"
    assert len({one, same, other, gj.graphs.ring(4), gj.graphs.ring(4)}) == 3
    assert gj.graphs.ring(4) is gj.graphs.ring(4), "made once"
    traced = []

    @functools.partial(jax.jit, static_argnames="graph")
    def gap(x, graph):
        traced.append(graph)
        return x * jnp.asarray(graph.weights, jnp.float32).sum()

    for graph in (one, same, other):
        gap(jnp.float32(1), graph=graph)
    assert traced == [one, other]
    weighed = gj.Graph(one.name, one.sources, one.weights / 2)
    assert weighed != one, "weights count"


def test_the_arrays_of_a_graph_cannot_be_written_to_nor_be_changed_from_outside():
    sources = np.array([[1, 0]])
    graph = gj.Graph("swap", sources, [[0.5, 0.5]])
    sources[:] = 0
    assert graph.sources.tolist() == [[1, 0]]
    for array in (graph.sources, graph.weights, graph.turns, graph.turn_weights, graph.receives):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_graph_is_undirected_where_each_route_has_its_inverse():
    for name in (
        "ring(5)",
        "star(5)",
        "complete(5)",
        "base(5)",
        "hypercube(4)",
        "torus(3, 4)",
        "edges",
    ):
        graph = GRAPHS[name]
        assert graph.inverse is not None, name
        back = np.take_along_axis(graph.sources[graph.inverse], graph.sources, axis=1)
        np.testing.assert_array_equal(back, np.broadcast_to(np.arange(graph.num_workers), back.shape))
    assert GRAPHS["exponential(5)"].inverse is None
    assert GRAPHS["exponential(2)"].inverse is not None, "a swap is its own inverse"


WRONG = {
    r"each row of sources must be a permutation of the 3 workers; row 1": ([[0, 1, 2], [0, 0, 1]], 0),
    r"sources must have shape \[E, W\]": ([0, 1], 0),
    r"weights must be finite, of shape \[E, W\] = \(1, 2\)": ([[1, 0]], [0.5]),
    "weights must be finite": ([[1, 0]], [[0.5, np.nan]]),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_no_graph_is_refused(message):
    sources, weights = WRONG[message]
    weights = np.zeros(np.shape(sources)) if weights == 0 else weights
    with pytest.raises(ValueError, match=message):
        gj.Graph("wrong", sources, weights)


@pytest.mark.parametrize("turns", [[0, 2], [1, 1], [1, 0], [0]])
def test_turns_go_up_from_zero_without_a_gap(turns):
    with pytest.raises(ValueError, match="turns must be 2 numbers that go up from 0"):
        gj.Graph("wrong", [[1, 0], [1, 0]], np.full((2, 2), 0.25), turns)
    with pytest.raises(ValueError, match="has turns 0 to 1; got 2"):
        gj.graphs.ring(3).turn(2)


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "4", None])
def test_a_number_of_workers_that_is_none_is_refused(wrong):
    families = [
        gj.graphs.hypercube,
        lambda w: gj.graphs.from_edges(w, []),
        lambda w: gj.graphs.torus(2, w),
    ]
    for family in (*FAMILIES.values(), *families, lambda k: gj.graphs.base(3, k)):
        with pytest.raises(ValueError, match="must be a whole number of 1 or more"):
            family(wrong)


def test_errors_say_what_is_allowed():
    with pytest.raises(ValueError, match="num_workers must be a power of two; got 6"):
        gj.graphs.hypercube(6)
    with pytest.raises(ValueError, match=r"routes must be one of .*; got 'swaps'"):
        gj.graphs.complete(4, "swaps")  # pyright: ignore[reportArgumentType]
