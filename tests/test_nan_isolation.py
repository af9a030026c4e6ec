"""Property 5: a sick worker infects only those who take its replica, and nobody else by a bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import AXES, BACKENDS, BACKENDS_AND_WORKERS, CASES, random_peers, telling_peers

import gossip_jax as gj


@pytest.mark.parametrize(
    ("backend", "num_workers"), [both for both in BACKENDS_AND_WORKERS if both.values[1] != 1]
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_sick_replica_reaches_only_those_who_take_it(case, backend, num_workers, rng):
    """Who takes whose replica is read off the reference, which adds what is exchanged and no zeros."""
    update = gj.place(num_workers, backend).map(case.one_update(), in_axes=AXES)
    healthy, updates = rng.uniform(-1, 1, (2, num_workers, 6)).astype(np.float32)
    center = np.zeros_like(healthy)
    spared = infected = 0
    rounds = telling_peers(rng, num_workers) + [random_peers(rng, num_workers, 0.2) for _ in range(4)]
    for step, peer in enumerate(rounds, start=case.period):
        round, sick = gj.Round(peer, step), int(rng.integers(num_workers))
        well = np.asarray(update((healthy, case.state(center)), updates, round)[0])
        for illness in (np.nan, np.inf):
            params, u = healthy.copy(), updates.copy()
            params[sick] = u[sick] = illness
            actual, state = update((params, case.state(center)), u, round)
            actual = np.asarray(actual)
            with np.errstate(invalid="ignore"):
                want, want_center = case.oracle(
                    peer, step, params.astype(float), u.astype(float), center[0]
                )
            taken = ~np.isfinite(want).all(axis=1)
            assert taken[sick]
            # A replica that is all NaN or infinite must not come back to life.
            assert not np.isfinite(actual[taken]).any()
            np.testing.assert_array_equal(actual[~taken], well[~taken])
            for held in jax.tree.leaves(state):  # EASGD's centre, which every worker holds
                assert (np.isfinite(held) == np.isfinite(want_center)).all()
            spared, infected = spared + (~taken).sum(), infected + taken.sum() - 1
    if case.pairwise:
        assert infected, "no round of this test spreads anything"
        assert spared, "no round of this test spares anybody"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pulled_worker_is_not_infected_by_who_pulls_and_a_pushed_one_is(backend):
    """Gossiping SGD is one-way, though each contact moves a replica in each direction."""
    params = jnp.array([[jnp.nan], [1.0], [2.0]])
    round = gj.Round([1, -1, -1])  # the sick worker 0 picks 1

    def infected(variant):
        protocol = gj.gossiping_sgd(variant)
        place = gj.place(3, backend)
        move = place.map(
            lambda theta, round: theta + protocol.update(0 * theta, (), theta, round=round)[0],
            (0, None),
        )
        return np.isnan(np.asarray(move(params, round))).ravel().tolist()

    assert infected("pull") == [True, False, False]
    assert infected("push") == [True, True, False]
