"""Property 6: exchanges conserve the sum over workers; who talks to nobody keeps every bit."""

import itertools

import jax
import numpy as np
import pytest
from cases import AXES, BACKENDS, CASES, PAIRWISE, random_peers, telling_peers

import gossip_jax as gj
from gossip_jax.exchange import mix

CONSERVING = [case for case in CASES if case.conserves_sum]


@pytest.mark.parametrize("num_workers", [2, 3, 5, 8])
@pytest.mark.parametrize("case", CONSERVING, ids=lambda case: case.name)
def test_communication_keeps_the_sum_over_workers(case, num_workers, rng):
    """Of parameters, with the centre where there is one; the local updates add to it what they are."""
    update = gj.place(num_workers, "vmap").map(case.one_update(), in_axes=AXES)
    params, updates, center = rng.uniform(-1, 1, (3, num_workers, 40)).astype(np.float32)
    center[:] = center[0]

    def total(params, state):
        centers = [np.asarray(leaf, np.float64)[0] for leaf in jax.tree.leaves(state)]
        return np.asarray(params, np.float64).sum(axis=0) + sum(centers)

    for step, peer in enumerate(telling_peers(rng, num_workers), start=1):
        state = case.state(center)
        before = total(params, state) + updates.sum(axis=0, dtype=np.float64)
        after = total(*update((params, state), updates, gj.Round(peer, step)))
        # W workers' float32 roundings of values up to 4.
        np.testing.assert_allclose(after, before, rtol=0, atol=num_workers * 4e-6)


@pytest.mark.parametrize("alpha", [1e-3, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_elastic_gossip_keeps_the_sum_for_any_moving_rate(alpha, backend, rng):
    protocol = gj.elastic_gossip(alpha)
    move = gj.place(6, backend).map(
        lambda theta, round: theta + protocol.update(0 * theta, (), theta, round=round)[0], (0, None)
    )
    theta = rng.uniform(-1, 1, (6, 40)).astype(np.float32)
    for peer in telling_peers(rng, 6):
        moved = np.asarray(move(theta, gj.Round(peer)), np.float64)
        np.testing.assert_allclose(moved.sum(axis=0), theta.sum(axis=0, dtype=float), rtol=0, atol=1e-5)
        assert (moved != theta).any() == (peer >= 0).any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", PAIRWISE, ids=lambda case: case.name)
def test_a_worker_outside_every_contact_gets_its_local_update_to_the_bit(case, backend, rng):
    num_workers = 7
    update = gj.place(num_workers, backend).map(case.one_update(), in_axes=AXES)
    params, updates = rng.normal(size=(2, num_workers, 9)).astype(np.float32)
    idle_seen = 0
    for _ in range(10):
        peer = random_peers(rng, num_workers, p=0.3)
        idle = [i for i in range(num_workers) if peer[i] == -1 and i not in peer]
        actual, _ = update((params, case.state(params)), updates, gj.Round(peer))
        np.testing.assert_array_equal(np.asarray(actual)[idle], (params + updates)[idle])
        idle_seen += len(idle)
    assert idle_seen


def test_elastic_gossip_of_one_pair_at_half_rate_is_their_mean(rng):
    protocol = gj.elastic_gossip(alpha=0.5)
    theta = rng.normal(size=(4, 5)).astype(np.float32)
    move = gj.place(4, "vmap").map(
        lambda theta, round: theta + protocol.update(0 * theta, (), theta, round=round)[0], (0, None)
    )
    for one, other in itertools.combinations(range(4), 2):
        peer = np.full(4, -1)
        peer[one] = other
        want = theta.copy()
        want[[one, other]] = theta[[one, other]].mean(axis=0)
        np.testing.assert_allclose(move(theta, gj.Round(peer)), want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", PAIRWISE, ids=lambda case: case.name)
def test_no_worker_is_special(case, rng):
    """Workers renamed in the round and in the stack give the same replicas, renamed."""
    num_workers = 6
    update = gj.place(num_workers, "vmap").map(case.one_update(), in_axes=AXES)
    params, updates = rng.uniform(-1, 1, (2, num_workers, 4)).astype(np.float32)
    for peer in telling_peers(rng, num_workers):
        new_name = rng.permutation(num_workers)
        renamed_peer = np.empty_like(peer)
        renamed_peer[new_name] = np.where(peer >= 0, new_name[peer], -1)
        renamed, renamed_updates = np.empty_like(params), np.empty_like(params)
        renamed[new_name], renamed_updates[new_name] = params, updates
        state = case.state(params)
        plain, _ = update((params, state), updates, gj.Round(peer))
        other, _ = update((renamed, state), renamed_updates, gj.Round(renamed_peer))
        # Peers are added up in another order: equal to rounding.
        np.testing.assert_allclose(np.asarray(other)[new_name], plain, rtol=0, atol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_mix_adds_the_weighted_differences_for_any_weights(backend, rng):
    """What the protocols are made of, in one line of NumPy; on routes that go one way, too."""
    for graph in (gj.graphs.complete(2), gj.graphs.complete(5), gj.graphs.exponential(5)):
        num_routes, num_workers = graph.sources.shape
        weights = rng.uniform(-1, 1, graph.sources.shape).astype(np.float32)
        weights *= rng.random(weights.shape) < 0.7
        used = rng.random(num_routes) < 0.7
        used[0] = True
        theta, updates = rng.uniform(-1, 1, (2, num_workers, 7)).astype(np.float32)
        round = gj.Round.of_routes(graph, used)
        mixed = gj.place(num_workers, backend).map(
            lambda u, theta, round, w: mix(u, theta, round, w, "workers"), (0, 0, None, None)
        )
        away = theta[graph.sources] - theta  # [E, W, 7]
        want = updates + (np.where(used[:, None], weights, 0)[..., None] * away).sum(axis=0)
        found = mixed(updates, theta, round, weights)
        # Ten terms of up to 2, each rounded.
        np.testing.assert_allclose(found, want, rtol=0, atol=4e-6)
