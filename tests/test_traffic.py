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
