"""The 1-factorisation of K_W: each pair of workers is in one matching, of as few as there can be."""

import itertools

import numpy as np
import pytest
from cases import possible_exchanges

import gossip_jax as gj
from gossip_jax import rounds
from gossip_jax.graphs.complete import matchings


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


@pytest.mark.parametrize("num_workers", range(1, 12))
def test_the_routes_of_the_complete_graph_are_its_pairs_or_its_matchings_each_once(num_workers):
    """Pairs for up to 8 workers, since then two who talk have nobody else send anything."""
    graph = gj.graphs.complete(num_workers)
    made = [frozenset(p for p in graph.pairs(e) if p[0] < p[1]) for e in range(graph.num_routes)]
    assert len(made) == len(set(made))
    assert set(made) == possible_exchanges(num_workers)
    by_hand = {kind: gj.graphs.complete(num_workers, kind) for kind in ("pairs", "matchings")}
    assert by_hand["pairs"].num_routes == num_workers * (num_workers - 1) // 2
    np.testing.assert_array_equal(by_hand["matchings"].sources, matchings(num_workers))
    assert by_hand["pairs" if num_workers <= 8 else "matchings"] == graph


@pytest.mark.parametrize("kind", ["pairs", "matchings"])
@pytest.mark.parametrize("num_workers", [2, 3, 8, 9])
def test_the_routes_in_use_hold_each_pair_in_contact_once_and_no_idle_route(num_workers, kind, rng):
    graph = gj.graphs.complete(num_workers, kind)
    for share in (0.0, 0.2, 0.5, 0.9, 1.0):
        peer = (np.arange(num_workers) + rng.integers(1, num_workers, num_workers)) % num_workers
        round = gj.Round(np.where(rng.random(num_workers) < share, peer, -1), graph=graph)
        contact = np.asarray(gj.in_contact(round))
        routes = np.flatnonzero(rounds.routes_in_use(round))
        used = [[pair for pair in graph.pairs(e) if contact[pair]] for e in routes.tolist()]
        assert all(used), "a route in use has a contact on it"
        assert sorted(itertools.chain(*used)) == [
            *zip(*map(np.ndarray.tolist, np.nonzero(contact)), strict=True)
        ]
        assert len(routes) in round.num_routes


def test_matchings_are_shared_and_so_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        matchings(4)[0, 0] = 1
