"""What is sent is counted exactly from the rounds, and expected exactly from their law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import random_peers

import gossip_jax as gj
from gossip_jax import traffic

PARAMS = {"kernel": jnp.zeros((3, 5)), "scale": jnp.zeros((), jnp.bfloat16), "none": {}}
BYTES = 3 * 5 * 4 + 2


def test_the_size_of_a_replica_counts_each_leaf_at_its_width():
    assert traffic.num_bytes(PARAMS) == BYTES
    assert traffic.num_bytes(jax.eval_shape(lambda: PARAMS)) == BYTES
    assert traffic.num_bytes({}) == 0


@pytest.mark.parametrize("num_workers", range(1, 9))
def test_counted_traffic_is_that_of_each_exchange_in_turn(num_workers, rng):
    peers = np.stack([random_peers(rng, num_workers) for _ in range(30)])
    exchanges, sent = 0, np.zeros(num_workers)
    for peer in peers:
        pairs = {frozenset((i, int(k))) for i, k in enumerate(peer) if k >= 0}
        exchanges += len(pairs)
        for pair in pairs:
            sent[list(pair)] += BYTES  # one replica in each direction
    counted = traffic.counted_routes(gj.Round(peers), PARAMS)
    assert counted.exchanges == exchanges
    np.testing.assert_array_equal(counted.bytes_sent, sent)

    parts = [traffic.counted_routes(gj.Round(part), PARAMS) for part in (peers[:10], peers[10:])]
    assert (parts[0] + parts[1]).exchanges == exchanges
    np.testing.assert_array_equal((parts[0] + parts[1]).bytes_sent, sent)
    one = traffic.counted_routes(gj.Round(peers[0]), PARAMS)
    assert one.exchanges == len({frozenset((i, int(k))) for i, k in enumerate(peers[0]) if k >= 0})


@pytest.mark.parametrize("num_workers", [2, 5, 8])
@pytest.mark.parametrize("law", [gj.uniform_peers, gj.pairing])
def test_expected_traffic_is_the_mean_of_counted_traffic(law, num_workers):
    draw, updates, runs = law(num_workers, p=0.3, period=2), 5, 4000
    rounds = gj.training.draw_rounds(draw, gj.keys.run_key(0), 2, runs * 2)  # each run as 2 x 2 updates
    expected = traffic.expected_routes(draw, PARAMS, updates)
    per_run = np.asarray(gj.in_contact(rounds)).reshape(runs // 2, 4, num_workers, num_workers)
    sent = per_run.sum(axis=(1, 3)) * BYTES  # [runs / 2, W], of two updates that may communicate each
    spread = sent.std(axis=0) / np.sqrt(len(sent))
    # Five standard errors: an error probability of 6e-7 a worker.
    assert (np.abs(sent.mean(axis=0) - expected.bytes_sent) < 5 * spread).all()
    assert expected.exchanges == pytest.approx(expected.bytes_sent.sum() / BYTES / 2)


def test_a_worker_is_in_about_2p_exchanges_per_update():
    """The thesis: on average about 2p; exactly 2p - p²/(W - 1), since mutual picks count once."""
    p, num_workers = 1 / 32, 8
    expected = traffic.expected_routes(gj.uniform_peers(num_workers, p), PARAMS, num_updates=100)
    want = 2 * p - p**2 / (num_workers - 1)
    np.testing.assert_allclose(expected.bytes_sent, 100 * BYTES * want, rtol=1e-12)


@pytest.mark.parametrize("num_workers", range(1, 9))
def test_collective_traffic_is_that_of_a_ring(num_workers):
    """Each worker sends a W-th of the replica W - 1 times to sum it up, and as often to spread it."""
    for updates, period, exchanges in ((12, 1, 12), (12, 5, 2), (4, 5, 0)):
        rounds = gj.Round(np.full((updates, num_workers), -1), np.arange(1, updates + 1))
        chunk = BYTES / num_workers
        for actual in (
            traffic.expected_collective(num_workers, PARAMS, updates, period),
            traffic.counted_collective(rounds, PARAMS, period),
        ):
            want = np.full(num_workers, exchanges * 2 * (num_workers - 1) * chunk)
            np.testing.assert_allclose(actual.bytes_sent, want)
            assert actual.exchanges == (exchanges if num_workers > 1 else 0)


def test_silence_sends_nothing():
    assert traffic.silence(3).exchanges == 0
    assert traffic.silence(3).bytes_sent.tolist() == [0, 0, 0]
    silent = traffic.counted_routes(gj.Round([-1, -1, -1]), PARAMS)
    assert (silent.exchanges, silent.bytes_sent.tolist()) == (0, [0, 0, 0])


@pytest.mark.parametrize(
    "graph", [gj.graphs.exponential(5), gj.graphs.ring(4), gj.graphs.star(4)], ids=str
)
def test_on_a_graph_who_receives_costs_its_source_a_replica(graph, rng):
    """One way where the route is; and back, too, for a protocol whose both sides move."""
    used = rng.random((20, graph.num_routes)) < 0.5
    sent = np.zeros(graph.num_workers)
    for e in np.nonzero(used)[1].tolist():
        for source, _ in graph.pairs(e):
            sent[source] += BYTES
    drawn = gj.Round.of_routes(graph, used)
    counted = traffic.counted_routes(drawn, PARAMS)
    np.testing.assert_array_equal(counted.bytes_sent, sent)
    assert counted.exchanges == np.asarray(gj.in_contact(drawn)).sum() / 2
    for name, options in (("dpsgd", {"order": "awc"}), ("gossiping_sgd", {"variant": "push"})):
        of_protocol = gj.protocols.SPECS[name].traffic(drawn, PARAMS, **options, wire_dtype=None)
        np.testing.assert_array_equal(of_protocol.bytes_sent, sent)
    if graph.inverse is not None:
        both = used | used[:, graph.inverse]
        swapped = traffic.counted_routes(gj.Round.of_routes(graph, both), PARAMS)
        elastic = gj.protocols.SPECS["elastic_gossip"].traffic(drawn, PARAMS, wire_dtype=None)
        np.testing.assert_array_equal(elastic.bytes_sent, swapped.bytes_sent)


def test_where_routes_are_matchings_a_contact_costs_all_of_its_matching():
    pairs, matchings = (
        traffic.counted_routes(gj.Round([1, -1, -1, -1], graph=gj.graphs.complete(4, kind)), PARAMS)
        for kind in ("pairs", "matchings")
    )
    assert pairs.exchanges == matchings.exchanges == 1
    assert pairs.bytes_sent.tolist() == [BYTES, BYTES, 0, 0]
    assert matchings.bytes_sent.tolist() == [BYTES] * 4


@pytest.mark.parametrize(
    "draw",
    [
        gj.uniform_peers(6, 0.2, routes="matchings"),
        gj.pairing(9, 0.4),
        gj.in_turn(gj.graphs.base(5), 2),
        gj.at_random(gj.graphs.exponential(4), 0.3),
        gj.every(gj.graphs.star(5), 3),
    ],
    ids=["matchings", "compiled pairing", "in turn", "at random", "every"],
)
def test_expected_traffic_over_routes_is_the_mean_of_what_is_counted(draw):
    updates = 3000 * draw.period  # a whole number of turns of each of these
    drawn = gj.training.draw_rounds(draw, gj.keys.run_key(0), 1, updates)
    counted = traffic.counted_routes(drawn, PARAMS)
    expected = traffic.expected_routes(draw, PARAMS, updates)
    # A worker sends in a round at most E replicas: five standard errors of 3000 rounds of such.
    limit = 5 * draw.graph.num_routes * BYTES / 2 * 3000**0.5
    assert (np.abs(counted.bytes_sent - expected.bytes_sent) < limit).all()
    assert abs(counted.exchanges - expected.exchanges) < limit / BYTES * draw.num_workers
    silent = set(np.flatnonzero(expected.bytes_sent == 0)) == set(
        np.flatnonzero(counted.bytes_sent == 0)
    )
    assert silent, "who never sends is never counted"
