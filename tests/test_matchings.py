"""The 1-factorisation of K_W: each pair of workers is in one matching, of as few as there can be."""

import itertools

import numpy as np
import pytest

from gossip_jax.matchings import matchings


@pytest.mark.parametrize("num_workers", range(1, 17))
def test_each_pair_is_in_exactly_one_matching(num_workers):
    rows = matchings(num_workers)
    pairs = [(i, int(k)) for row in rows for i, k in enumerate(row) if i < k]
    assert sorted(pairs) == list(itertools.combinations(range(num_workers), 2))


@pytest.mark.parametrize("num_workers", range(1, 17))
def test_a_matching_is_an_involution_in_which_at_most_one_sits_out(num_workers):
    rows = matchings(num_workers)
    for row in rows:
        np.testing.assert_array_equal(row[row], np.arange(num_workers))
        assert (row == np.arange(num_workers)).sum() == num_workers % 2
    # K_W has W (W - 1) / 2 pairs, and a matching holds W / 2 of them at most, rounded down.
    assert len(rows) == (0 if num_workers == 1 else num_workers - 1 + num_workers % 2)


def test_matchings_are_shared_and_so_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        matchings(4)[0, 0] = 1
