"""Protocols that are one another's special cases: `local_sgd(1)` is All-reduce SGD, and the rest."""

from typing import Any

import jax
import numpy as np
import optax
import oracles
import pytest
from decentral_cases import as_matrices, drawn, one_peer, pairs, peers, ring, run, values

import gossip_jax as gj
from gossip_jax import compression, graphs

PLAIN = optax.sgd(oracles.RATE)
MIXED_BY_ALL = gj.every(
    gj.Graph("all", [(np.arange(4) + shift) % 4 for shift in (1, 2, 3)], np.full((3, 4), 0.25))
)


def same(make: Any, other: Any, draw: Any, other_draw: Any = None, local: Any = None, workers: int = 4):
    """Both take the same course."""
    start, gradients = values(np.random.default_rng(0), workers)
    rounds = drawn(draw(workers))
    of_other = rounds if other_draw is None else drawn(other_draw(workers))
    one, _ = run(make, rounds, start, gradients, local=local)
    two, _ = run(other, of_other, start, gradients, local=local)
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)
    assert np.abs(one[-1] - start).max() > 0.1


def test_local_sgd_of_period_one_with_plain_sgd_is_all_reduce():
    same(gj.local_sgd(1), gj.all_reduce(), peers, local=PLAIN)


def test_with_rmsprop_local_sgd_of_period_one_is_not_all_reduce():
    start, gradients = values(np.random.default_rng(0), 4)
    rounds = drawn(peers(4))
    adaptive = optax.rmsprop(0.1)
    one, _ = run(gj.local_sgd(1), rounds, start, gradients, local=adaptive)
    two, _ = run(gj.all_reduce(), rounds, start, gradients, local=adaptive)
    assert np.abs(one - two).max() > 1e-2


def test_post_local_sgd_that_never_starts_is_all_reduce():
    same(gj.post_local_sgd(100, 3), gj.all_reduce(), peers)


def test_diloco_with_plain_sgd_of_rate_one_is_local_sgd():
    same(gj.diloco(optax.sgd(1.0), 3), gj.local_sgd(3), peers)


def test_streaming_diloco_in_one_part_without_delay_is_diloco():
    same(gj.streaming_diloco(period=3, fragments=1), gj.diloco(period=3), peers)


def test_slowmo_without_momentum_is_local_sgd():
    same(gj.slowmo(3, beta=0.0, alpha=1.0), gj.local_sgd(3), peers)


def test_slowmo_is_diloco_with_a_heavy_ball():
    same(gj.slowmo(3, 0.6, 0.7), gj.diloco(optax.sgd(0.7, momentum=0.6), 3), peers)


def test_slowmo_at_a_constant_rate_does_not_depend_on_it():
    same(gj.slowmo(3, 0.6, 0.7, learning_rate=0.01), gj.slowmo(3, 0.6, 0.7), peers)


def test_sparse_loco_that_sends_all_and_keeps_nothing_is_local_sgd():
    same(gj.sparse_loco(compression.identity(), 3, beta=0.0), gj.local_sgd(3), peers)


def test_choco_with_everything_sent_is_dpsgd_atc():
    same(gj.choco(compression.identity(), 1.0), gj.dpsgd("atc"), ring)


def test_push_sum_on_a_regular_graph_is_dpsgd_atc():
    same(gj.push_sum(), gj.dpsgd("atc"), one_peer)
    same(gj.push_sum(), gj.dpsgd("atc"), ring, workers=5)


def test_quasi_global_momentum_without_momentum_is_dpsgd_atc():
    same(gj.quasi_global_momentum(beta=0.0, mu=0.3), gj.dpsgd("atc"), ring)


@pytest.mark.parametrize(
    "make",
    [gj.gradient_tracking, lambda: gj.exact_diffusion("whole")],
    ids=["gradient_tracking", "D²"],
)
def test_tracking_on_a_graph_that_means_at_once_is_the_mean_gradient_on_all(make):
    start, gradients = values(np.random.default_rng(0), 4)
    found, _ = run(make(), drawn(MIXED_BY_ALL), start, gradients, local=PLAIN)
    # After the first update, by which workers know of each other.
    wanted = start[0] - oracles.RATE * np.cumsum(gradients.mean(axis=1), axis=0)
    np.testing.assert_allclose(found, np.broadcast_to(wanted[:, None], found.shape), atol=1e-5)


def test_noloco_of_two_workers_that_follow_all_the_way_come_to_the_mean():
    start, gradients = values(np.random.default_rng(0), 2)
    found, _ = run(gj.noloco(1, 0.0, 1.0, 1.0), drawn(pairs(1)(2)), start, gradients)
    mean, _ = run(gj.local_sgd(1), drawn(peers(2)), start, gradients)
    np.testing.assert_allclose(found, mean, rtol=0, atol=1e-6)


def test_elastic_gossip_of_a_half_on_matchings_is_dpsgd_awc():
    same(gj.elastic_gossip(0.5), gj.dpsgd("awc"), pairs(1))


def test_gossip_pga_of_period_one_is_local_sgd_of_period_one():
    same(gj.gossip_pga(1), gj.local_sgd(1), ring)


def test_staggered_easgd_of_period_one_is_all_together():
    same(gj.elastic_averaging(0.1, 1, phase="staggered"), gj.elastic_averaging(0.1, 1), peers)


def test_matcha_with_the_whole_budget_is_dpsgd_with_its_weight():
    found = graphs.matcha(graphs.chain(4), 1.0)
    same(
        gj.dpsgd("atc"),
        gj.dpsgd("atc"),
        lambda _: gj.independently(found.graph, found.probabilities),
        lambda _: gj.every(found.graph),
    )


@pytest.mark.parametrize("order", ["awc", "atc"])
def test_dpsgd_of_one_worker_is_the_local_optimizer_to_the_bit(order):
    start, gradients = values(np.random.default_rng(0), 1)
    one, _ = run(gj.dpsgd(order), drawn(ring(1)), start, gradients)
    two, _ = run(gj.no_communication(), drawn(ring(1)), start, gradients)
    np.testing.assert_array_equal(one, two)


def test_consensus_by_push_sum_on_any_directed_graph():
    """Without updates all come to the mean, however many a worker sends to and hears from."""
    rows = [[1, 2, 0, 3, 4], [0, 3, 2, 4, 1], [4, 1, 2, 3, 0]]
    draw = gj.every(gj.Graph("directed", rows, np.full((3, 5), 0.2)))
    start = np.random.default_rng(0).normal(size=(5, 13))
    rounds = drawn(draw, 60)
    out_degrees = as_matrices(rounds).receives[0].sum(axis=0)
    assert len(set(out_degrees.tolist())) > 1
    found, state = run(gj.push_sum(), rounds, start, np.zeros((60, 5, 13)))
    np.testing.assert_allclose(found[-1], np.broadcast_to(start.mean(axis=0), (5, 13)), atol=1e-5)
    (weight,) = [leaf for leaf in jax.tree.leaves(state) if leaf.shape == (5,)]
    assert np.abs(weight - 1).max() > 0.1
    np.testing.assert_allclose(weight.sum(), 5, rtol=1e-5)
