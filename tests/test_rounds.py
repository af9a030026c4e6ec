"""A Round says who picked whom; everything else follows from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import random_peers

import gossip_jax as gj


@pytest.mark.parametrize("num_workers", range(1, 9))
def test_contacts_follow_from_the_picks(num_workers, rng):
    peers = np.stack([random_peers(rng, num_workers) for _ in range(20)])
    stacked = gj.Round(peers, np.arange(20))
    for t, peer in enumerate(peers):
        picked = np.zeros((num_workers, num_workers), bool)
        for i, k in enumerate(peer):
            if k >= 0:
                picked[i, k] = True
        for every, want in ((gj.initiated, picked), (gj.in_contact, picked | picked.T)):
            np.testing.assert_array_equal(every(gj.Round(peer)), want)
            np.testing.assert_array_equal(every(stacked)[t], want)
            np.testing.assert_array_equal(jax.jit(every)(gj.Round(peer)), want)


def test_a_pair_that_picked_each_other_is_one_contact():
    assert np.asarray(gj.in_contact(gj.Round([1, 0]))).tolist() == [[False, True], [True, False]]


@pytest.mark.parametrize("peer", [[-1, 0], np.array([-1, 0], np.int64), jnp.array([-1, 0], jnp.int8)])
def test_peers_and_steps_of_any_integer_type_become_int32(peer):
    round = gj.Round(peer, np.uint8(3))
    assert round.peer.dtype == round.step.dtype == jnp.int32
    assert (round.peer.tolist(), int(round.step), round.num_workers) == ([-1, 0], 3, 2)


def test_a_round_belongs_to_update_one_unless_said_otherwise():
    assert gj.Round([-1, 0]).step == 1
    assert gj.Round([[-1, 0]] * 3).step.tolist() == [1, 1, 1]


def test_a_round_is_a_pytree_that_can_be_stacked_scanned_and_rebuilt_around_anything():
    rounds = gj.Round([[1, -1], [-1, 0], [-1, -1]], [4, 5, 6])
    _, (peers, steps) = jax.lax.scan(lambda c, round: (c, (round.peer, round.step)), 0, rounds)
    np.testing.assert_array_equal(peers, rounds.peer)
    np.testing.assert_array_equal(steps, [4, 5, 6])
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(rounds)]
    assert paths == [".peer", ".step"]
    leaves, structure = jax.tree.flatten(rounds)
    assert jax.tree.unflatten(structure, [None, "anything"]).step == "anything"
    again = jax.tree.unflatten(structure, leaves)
    assert isinstance(again, gj.Round)
    assert again.num_workers == 2
