"""What docs/rounds.md says of rounds that are doubled, missing, or out of order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import AXES, CASES, PAIRWISE, random_peers

import gossip_jax as gj
from gossip_jax import traffic

NUM_WORKERS = 6
ELASTIC = next(case for case in PAIRWISE if case.conserves_sum)
ALPHA = 0.3  # of its row


@pytest.fixture
def theta(rng) -> np.ndarray:
    return rng.uniform(-1, 1, (NUM_WORKERS, 5)).astype(np.float32)


def after(case, theta, *rounds, updates=None) -> np.ndarray:
    """The parameters after exchanges, without local updates where none are given."""
    update = gj.place(NUM_WORKERS, "vmap").map(case.one_update(), AXES)
    state = case.state(np.zeros_like(theta))
    for round in rounds:
        theta, state = update((theta, state), 0 * theta if updates is None else updates, round)
    return np.asarray(theta)


def only(*contacts: tuple[int, int]) -> gj.Round:
    peer = np.full(NUM_WORKERS, -1)
    for one, other in contacts:
        peer[one] = other
    return gj.Round(peer)


def test_two_that_pick_each_other_exchange_once(theta):
    mutual, one_sided, other_side = only((1, 4), (4, 1)), only((1, 4)), only((4, 1))
    once = after(ELASTIC, theta, one_sided)
    np.testing.assert_array_equal(after(ELASTIC, theta, mutual), once)
    np.testing.assert_array_equal(after(ELASTIC, theta, other_side), once)
    for round in (mutual, one_sided, other_side):
        assert traffic.counted_routes(round, theta[0]).exchanges == 1


def test_a_round_that_is_applied_twice_is_two_exchanges(theta):
    round = only((0, 3))
    difference = theta[0] - theta[3]
    for times in (1, 2, 3):
        moved = after(ELASTIC, theta, *[round] * times)
        want = (1 - 2 * ALPHA) ** times * difference
        np.testing.assert_allclose(moved[0] - moved[3], want, rtol=0, atol=1e-6)
        np.testing.assert_allclose(moved.sum(axis=0), theta.sum(axis=0), rtol=0, atol=1e-6)
        np.testing.assert_array_equal(moved[[1, 2, 4, 5]], theta[[1, 2, 4, 5]])


def test_at_half_rate_a_second_exchange_finds_the_two_equal(theta):
    half = gj.elastic_gossip(alpha=0.5)
    move = gj.place(NUM_WORKERS, "vmap").map(
        lambda theta, round: theta + half.update(0 * theta, (), theta, round=round)[0], (0, None)
    )
    once = np.asarray(move(theta, only((2, 5))))
    # Where the two ends of an exchange differ by a rounding, the second one moves them by as much.
    np.testing.assert_allclose(move(once, only((2, 5))), once, rtol=0, atol=1e-7)


@pytest.mark.parametrize("case", PAIRWISE, ids=lambda case: case.name)
def test_rounds_without_a_worker_in_common_can_be_swapped_and_others_cannot(case, theta):
    first, apart, touching = only((0, 1)), only((2, 3), (4, 5)), only((1, 2), (2, 1))
    np.testing.assert_array_equal(after(case, theta, first, apart), after(case, theta, apart, first))
    together = after(case, theta, only((0, 1), (2, 3), (4, 5)))
    np.testing.assert_array_equal(after(case, theta, first, apart), together)
    one_way, other_way = after(case, theta, first, touching), after(case, theta, touching, first)
    assert (one_way != other_way).any()


def test_in_whatever_order_and_however_often_the_sum_is_kept(theta, rng):
    rounds = [gj.Round(random_peers(rng, NUM_WORKERS)) for _ in range(4)]
    for _ in range(5):
        order = rng.integers(0, len(rounds), 6)  # some are doubled, some are missing
        moved = after(ELASTIC, theta, *(rounds[index] for index in order))
        size = np.abs(moved).max()  # α |K_i| may be above 1: replicas then grow
        np.testing.assert_allclose(moved.sum(axis=0), theta.sum(axis=0), rtol=0, atol=1e-5 * size)


@pytest.mark.parametrize("case", PAIRWISE, ids=lambda case: case.name)
def test_the_step_of_a_round_does_not_matter_to_protocols_of_pairs(case, theta):
    peer = [1, 0, 0, -1, 3, -1]
    moved = [after(case, theta, gj.Round(peer, step)) for step in (1, 7, 2**31 - 1)]
    for other in moved[1:]:
        np.testing.assert_array_equal(other, moved[0])


def test_the_centre_is_pulled_again_wherever_the_period_divides_the_step(theta):
    case = next(case for case in CASES if case.name == "elastic_averaging")
    assert case.period == 2
    once, again = gj.Round([-1] * NUM_WORKERS, 2), gj.Round([-1] * NUM_WORKERS, 4)
    np.testing.assert_array_equal(after(case, theta, once, once), after(case, theta, again, once))
    assert (after(case, theta, once, once) != after(case, theta, once)).any()
    not_due = gj.Round([-1] * NUM_WORKERS, 3)
    np.testing.assert_array_equal(after(case, theta, not_due), theta)


@pytest.mark.parametrize("case", PAIRWISE, ids=lambda case: case.name)
def test_a_round_that_is_missing_leaves_the_local_update(case, theta, rng):
    updates = rng.normal(size=theta.shape).astype(np.float32)
    np.testing.assert_array_equal(after(case, theta, only(), updates=updates), theta + updates)


def test_a_contact_that_one_of_the_two_misses_moves_the_other_alone(theta):
    """Under vmap, with a round for each worker; elsewhere they would wait for ever."""
    seen_by_each = np.full((NUM_WORKERS, NUM_WORKERS), -1)
    seen_by_each[0, 0] = 1  # worker 0 knows that it picked 1; worker 1 does not
    stacked = gj.Round(seen_by_each, jnp.ones(NUM_WORKERS, jnp.int32))
    update = jax.vmap(ELASTIC.one_update(), axis_name="workers")
    moved = np.asarray(update((theta, ELASTIC.state(theta)), 0 * theta, stacked)[0])
    np.testing.assert_array_equal(moved[1:], theta[1:])
    want = theta[0] - ALPHA * (theta[0] - theta[1])
    np.testing.assert_allclose(moved[0], want, rtol=0, atol=1e-6)
