"""Workers that sit out updates: nothing of them changes, nobody talks to them, and the laws hold."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy
from cases import BACKENDS, PAIRWISE, random_peers

import gossip_jax as gj
from gossip_jax import absence, training

NUM_WORKERS, KEY = 4, gj.keys.run_key(2)
ELASTIC = next(case for case in PAIRWISE if case.conserves_sum)


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_contacts_with_the_absent_fall_away_and_no_others(num_workers, rng):
    peers = np.stack([random_peers(rng, num_workers) for _ in range(20)])
    absent = rng.random((20, num_workers)) < 0.4
    left = absence.without(gj.Round(peers, np.arange(20)), absent)
    here = ~absent[:, :, None] & ~absent[:, None, :]
    np.testing.assert_array_equal(
        gj.initiated(left), np.asarray(gj.initiated(gj.Round(peers, np.arange(20)))) & here
    )
    np.testing.assert_array_equal(left.step, np.arange(20))
    one = absence.without(gj.Round(peers[0]), absent[0])
    np.testing.assert_array_equal(one.peer, left.peer[0])


def test_absences_are_drawn_at_their_rate_and_independently():
    rate, num_updates = 0.3, 20_000
    absent = np.asarray(absence.draw_absences(KEY, 1, num_updates, NUM_WORKERS, rate))
    deviation = (rate * (1 - rate) / num_updates) ** 0.5
    # Five standard deviations: all 4 + 6 figures stay within them but in one case of 100,000.
    assert (abs(absent.mean(axis=0) - rate) < 5 * deviation).all()
    both = [(absent[:, i] & absent[:, k]).mean() for i in range(4) for k in range(i)]
    assert (abs(np.array(both) - rate**2) < 5 * (rate**2 * (1 - rate**2) / num_updates) ** 0.5).all()
    assert not np.asarray(absence.draw_absences(KEY, 1, 100, NUM_WORKERS, 0.0)).any()
    assert np.asarray(absence.draw_absences(KEY, 1, 100, NUM_WORKERS, 1.0)).all()


def test_absences_do_not_depend_on_how_a_run_is_cut_nor_on_its_rounds():
    whole = absence.draw_absences(KEY, 1, 10, NUM_WORKERS, 0.5)
    parts = [absence.draw_absences(KEY, first, 5, NUM_WORKERS, 0.5) for first in (1, 6)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    coins = training.draw_rounds(gj.uniform_peers(NUM_WORKERS, 0.5), KEY, 1, 10).peer >= 0
    assert (np.asarray(whole) != coins).any()


def epoch(backend, optimizer, rounds, absent, loss=toy.loss, state=None):
    """An epoch of the toy run in which workers sit out: the stacked state and losses."""
    placement = gj.place(NUM_WORKERS, backend)
    if state is None:
        first = jax.device_get(training.init_worker(toy.init_params(), {}, optimizer))
        state = toy.stack(first, NUM_WORKERS)

    def one_worker(state, shard, rounds, key, absent):
        def wrap(update):
            return absence.sitting_out(update, absent, rounds.step[0])

        train = training.train_epoch(loss, optimizer, toy.BATCH_SIZE, wrap=wrap)
        return train(state, shard, rounds, key)

    run = placement.map(one_worker, (0, 0, None, None, None))
    return run(state, toy.shards(NUM_WORKERS), absence.without(rounds, absent), KEY, absent)


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_sits_out_keeps_every_bit_of_its_state(backend):
    optimizer = ELASTIC.chain(optax.sgd(0.1, momentum=0.9))
    rounds = training.draw_rounds(gj.uniform_peers(NUM_WORKERS, 0.8), KEY, 1, toy.UPDATES)
    absent = np.zeros((toy.UPDATES, NUM_WORKERS), bool)
    absent[:, 2] = True
    start, _ = epoch("vmap", optimizer, rounds, absent)
    after, losses = epoch(backend, optimizer, rounds, absent, state=jax.device_get(start))
    for before, now in zip(jax.tree.leaves(start), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(now[2], before[2])
        assert all((np.asarray(now[i]) != before[i]).any() for i in (0, 1, 3))
    assert losses[2] == 0
    assert (np.asarray(losses)[[0, 1, 3]] > 0).all()


def test_an_epoch_in_which_nobody_sits_out_is_the_plain_one():
    optimizer = ELASTIC.chain(optax.sgd(0.1, momentum=0.9))
    rounds = training.draw_rounds(gj.uniform_peers(NUM_WORKERS, 0.5), KEY, 1, toy.UPDATES)
    found, _ = epoch("vmap", optimizer, rounds, np.zeros((toy.UPDATES, NUM_WORKERS), bool))
    first = jax.device_get(training.init_worker(toy.init_params(), {}, optimizer))
    plain = gj.place(NUM_WORKERS, "vmap").map(
        training.train_epoch(toy.loss, optimizer, toy.BATCH_SIZE), (0, 0, None, None)
    )
    want, _ = plain(toy.stack(first, NUM_WORKERS), toy.shards(NUM_WORKERS), rounds, KEY)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), found, want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_sum_over_workers_is_kept_whoever_sits_out(backend, rng):
    """Without local updates, Elastic Gossip's exchanges among those who are there are all there is."""

    def no_loss(params, model_state, batch, key):
        return 0 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params)), model_state

    optimizer = ELASTIC.chain(optax.sgd(0.1))
    rounds = training.draw_rounds(gj.pairing(NUM_WORKERS, 0.9), KEY, 1, toy.UPDATES)
    absent = absence.draw_absences(KEY, 1, toy.UPDATES, NUM_WORKERS, 0.3)
    assert np.asarray(absent).any()
    params = jax.tree.map(
        lambda leaf: rng.uniform(-1, 1, (NUM_WORKERS, *leaf.shape)).astype(np.float32),
        toy.init_params(),
    )
    state = training.WorkerState(params, jax.vmap(optimizer.init)(params), {})
    moved = jax.device_get(epoch(backend, optimizer, rounds, absent, no_loss, state)[0].params)
    for name, before in params.items():
        assert (moved[name] != before).any()
        np.testing.assert_allclose(moved[name].sum(axis=0), before.sum(axis=0), rtol=0, atol=1e-5)
