"""The 1-factorisation of K_W: each pair of workers is in one matching, of as few as there can be."""

import itertools

import numpy as np
import pytest
from cases import possible_exchanges

from gossip_jax.matchings import exchanges, matchings, pairs, used


@pytest.mark.parametrize("num_workers", range(1, 17))
def test_each_pair_is_in_exactly_one_matching(num_workers):
    rows = matchings(num_workers)
    listed = [(i, int(k)) for row in rows for i, k in enumerate(row) if i < k]
    assert sorted(listed) == list(itertools.combinations(range(num_workers), 2))


@pytest.mark.parametrize("num_workers", range(1, 17))
def test_a_matching_is_an_involution_in_which_at_most_one_sits_out(num_workers):
    rows = matchings(num_workers)
    for row in rows:
        np.testing.assert_array_equal(row[row], np.arange(num_workers))
        assert (row == np.arange(num_workers)).sum() == num_workers % 2
    # K_W has W (W - 1) / 2 pairs, and a matching holds W / 2 of them at most, rounded down.
    assert len(rows) == (0 if num_workers == 1 else num_workers - 1 + num_workers % 2)


@pytest.mark.parametrize("num_workers", range(2, 10))
def test_exchanges_are_all_matchings_and_all_pairs_each_once(num_workers):
    partner, matching = exchanges(num_workers)
    made = [frozenset(pairs(row)) for row in partner]
    assert len(made) == len(set(made))
    assert set(made) == possible_exchanges(num_workers)
    assert all(part <= made[number] for part, number in zip(made, matching, strict=True))


@pytest.mark.parametrize("num_workers", range(2, 10))
def test_the_exchanges_of_a_round_hold_each_pair_in_contact_once(num_workers, rng):
    partner, _ = exchanges(num_workers)
    for share in (0.0, 0.2, 0.5, 0.9, 1.0):
        above = np.triu(rng.random((num_workers, num_workers)) < share, 1)
        contact = above | above.T
        swapped = [pair for row in partner[used(contact)] for pair in pairs(row)]
        assert sorted(swapped) == [*zip(*map(np.ndarray.tolist, np.nonzero(above)), strict=True)]
    assert used(contact).sum() == len(matchings(num_workers)), "all in contact: whole matchings only"


def test_matchings_are_shared_and_so_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        matchings(4)[0, 0] = 1
