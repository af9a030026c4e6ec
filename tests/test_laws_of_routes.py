"""Property 7 for graphs: which routes a law has in use, how often, and what is known of it beforehand.

Statistical tests are of fixed keys, so they always say the same; see test_draws.py.
"""

import collections
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import AXES, CASES
from hlo import collectives, computations, turns
from scipy import stats

import gossip_jax as gj
from gossip_jax import rounds
from gossip_jax.graphs.complete import matchings

ERROR = 1e-6
SAMPLES = 20_000

REPEATED = (
    "uniform, weighted",
    "uniform, rare",
    "pairing, even",
    "pairing, matchings",
    "pairing, all",
    "at random",
)
DRAWS = {
    "uniform, pairs": lambda: gj.uniform_peers(5, 0.4),
    "uniform, matchings": lambda: gj.uniform_peers(6, 0.2, routes="matchings"),
    "uniform, weighted": lambda: gj.uniform_peers(
        3, 0.7, weights=np.array([[0, 3, 1], [0, 0, 2], [1, 1, 0]])
    ),
    "uniform, rare": lambda: gj.uniform_peers(8, 1 / 16),
    "pairing, even": lambda: gj.pairing(6, 0.4),
    "pairing, odd": lambda: gj.pairing(5, 1.0),
    "pairing, matchings": lambda: gj.pairing(6, 0.4, routes="matchings"),
    "pairing of ten": lambda: gj.pairing(10, 0.3),
    "pairing of nine": lambda: gj.pairing(9, 1.0, period=2),
    "pairing of nine, pairs": lambda: gj.pairing(9, 0.3, routes="pairs"),
    "pairing, compiled": lambda: gj.pairing(4, 0.5, among="compiled"),
    "pairing, all": lambda: gj.pairing(9, 0.5, among="all"),
    "every": lambda: gj.every(gj.graphs.ring(5), period=3),
    "in turn": lambda: gj.in_turn(gj.graphs.exponential(8)),
    "in turn, base": lambda: gj.in_turn(gj.graphs.base(5, k=2), period=2),
    "at random": lambda: gj.at_random(gj.graphs.star(5), 0.3),
    "at random, base": lambda: gj.at_random(gj.graphs.base(6, k=2), 1.0),
    "one worker": lambda: gj.in_turn(gj.graphs.ring(1)),
}


def sample(draw: gj.Draw, num_rounds: int = SAMPLES) -> gj.Round:
    """Rounds at updates at which workers may talk."""
    steps = draw.period * jnp.arange(1, num_rounds + 1)
    return jax.jit(jax.vmap(draw, (None, 0)))(gj.keys.run_key(0), steps)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in REPEATED else n for n in DRAWS]
)
def test_routes_and_contacts_are_as_frequent_as_is_stated_and_as_many_as_is_known(name):
    draw = DRAWS[name]()
    drawn = sample(draw)
    in_use = np.asarray(rounds.routes_in_use(drawn))
    contacts = np.asarray(gj.in_contact(drawn))
    for actual, probability in (
        (in_use, draw.route_probability()),
        (contacts, draw.contact_probability()),
    ):
        assert probability.shape == actual.shape[1:]
        assert (probability >= 0).all()
        spread = np.sqrt(probability * (1 - probability) / SAMPLES)
        # Five standard deviations, of at most 36 numbers: 2e-5. Turns come in order: 1 of 20,000.
        far = np.abs(actual.mean(axis=0) - probability) > 5 * spread + 1e-4
        assert not far.any(), (actual.mean(axis=0), probability)
    counted = set(in_use.sum(axis=1).tolist())
    assert counted <= set(draw(gj.keys.run_key(0), draw.period).num_routes)
    np.testing.assert_array_equal(contacts, contacts.swapaxes(1, 2))


@pytest.mark.parametrize("name", [name for name in DRAWS if DRAWS[name]().period > 1])
def test_between_periods_no_route_is_in_use(name):
    draw = DRAWS[name]()
    steps = [step for step in range(1, 20) if step % draw.period]
    for step in steps:
        round = draw(gj.keys.run_key(0), step)
        assert not rounds.routes_in_use(round).any()
        assert 0 in round.num_routes


def test_every_has_all_routes_and_in_turn_one_turn_after_the_other():
    graph = gj.graphs.base(5, k=2)
    assert (np.bincount(graph.turns) > 1).any(), "this test is about turns of several routes, too"
    for period in (1, 3):
        in_turn = gj.in_turn(graph, period)
        for number in range(2 * graph.num_turns):
            routes = in_turn(gj.keys.run_key(number), (number + 1) * period).routes
            np.testing.assert_array_equal(routes, graph.turns == number % graph.num_turns)
    assert gj.every(gj.graphs.ring(5))(gj.keys.run_key(0), 7).routes.all()


@pytest.mark.parametrize("p", [0.3, 1.0])
def test_at_random_has_each_turn_equally_often_and_independently_of_the_last(p):
    graph = gj.graphs.exponential(8)
    drawn = np.asarray(sample(gj.at_random(graph, p)).routes)
    assert set(drawn.sum(axis=1).tolist()) == ({0, 1} if p < 1 else {1})
    which = np.where(drawn.any(axis=1), drawn.argmax(axis=1) + 1, 0)
    law = [1 - p] * (p < 1) + [p / 3] * 3
    pairs = collections.Counter(itertools.pairwise(which.tolist()))
    expected = {pair: SAMPLES * law[pair[0] - (p == 1)] * law[pair[1] - (p == 1)] for pair in pairs}
    assert len(pairs) == len(law) ** 2
    total = sum(pairs.values()) / sum(expected.values())
    found = stats.chisquare([pairs[k] for k in pairs], [total * expected[k] for k in pairs])
    assert found.pvalue > ERROR


@pytest.mark.parametrize("num_workers", [9, 10])
def test_pairing_of_many_draws_one_of_the_compiled_matchings_each_as_often(num_workers):
    """And so pairs each two of the workers equally often, for an odd number of them, too."""
    peers = np.asarray(sample(gj.pairing(num_workers, 1.0)).peer)
    partners = np.where(peers < 0, np.arange(num_workers), peers)
    seen = collections.Counter(map(tuple, partners.tolist()))
    assert seen.keys() == set(map(tuple, matchings(num_workers).tolist()))
    assert stats.chisquare([*seen.values()]).pvalue > ERROR


def test_pairing_among_all_draws_every_perfect_matching_of_ten_equally_often():
    seen = collections.Counter(
        map(tuple, np.asarray(sample(gj.pairing(10, 1.0, among="all")).peer).tolist())
    )
    assert len(seen) == 9 * 7 * 5 * 3  # (W - 1)!!
    assert stats.chisquare([*seen.values()]).pvalue > ERROR


OTHERS: Any = ((8, "all", "compiled"), (9, "compiled", "all"))


def test_up_to_eight_workers_pairing_is_among_all_and_above_among_the_compiled():
    for num_workers, same, other in OTHERS:
        auto, like, unlike = (
            np.asarray(sample(gj.pairing(num_workers, 0.9, among=among), 50).peer)
            for among in ("auto", same, other)
        )
        np.testing.assert_array_equal(auto, like)
        assert (auto != unlike).any()
    with pytest.raises(ValueError, match="among must be 'auto', 'all' or 'compiled'; got 'some'"):
        gj.pairing(4, 1.0, among="some")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("among", ["compiled", "all"])
def test_a_round_of_a_compiled_pairing_is_one_exchange_and_in_no_loop(among):
    """Routes are branches of one conditional; any pairing needs a loop over several of them."""
    case = next(case for case in CASES if case.name == "elastic_gossip")
    round = gj.pairing(8, 1.0, routes="matchings", among=among)(gj.keys.run_key(0), 1)
    replicas = jnp.zeros((8, 3))
    placed: Any = gj.place(8, "pmap").map(case.one_update(), AXES)
    program = placed.lower((replicas, case.state(replicas)), replicas, round).compile().as_text()
    sent = [i for part in computations(program)[0].values() for i in collectives(part)]
    assert len([i for i in sent if not i.opcode.endswith("-done")]) == 7, "each matching once"
    *in_loops, _ = sorted(turns(program), key=len)
    loops = [turn for turn in turns(program) if any(i.opcode == "while" for i in turn)]
    assert bool(loops) == (among == "all"), (len(in_loops), len(loops))


@pytest.mark.parametrize("name", ["every", "in turn, base", "at random, base", "pairing of nine"])
def test_a_draw_of_routes_gives_the_same_bits_eagerly_jitted_vmapped_and_in_64_bits(name):
    draw, key = DRAWS[name](), gj.keys.run_key(7)
    together = jax.vmap(draw, (None, 0))(key, jnp.arange(1, 7))
    for step in range(1, 7):
        eager, jitted = draw(key, step), jax.jit(draw)(key, step)
        with jax.enable_x64(True):
            wide = draw(key, step)
        one = jax.tree.map(lambda leaf, step=step: leaf[step - 1], together)
        for other in (jitted, one, wide):
            assert (other.graph, other.num_routes) == (eager.graph, eager.num_routes)
            jax.tree.map(np.testing.assert_array_equal, other, eager)
            assert other.step.dtype == jnp.int32
        assert eager.step == step


def test_routes_that_are_drawn_are_pinned():
    """Golden values, drawn with jax 0.10.2: a change breaks the reproduction of every run before it."""
    key = gj.keys.run_key(0)
    at_random = gj.at_random(gj.graphs.exponential(8), 0.7)
    found = [np.flatnonzero(at_random(key, step).routes).tolist() for step in range(1, 9)]
    assert found == GOLDEN_AT_RANDOM
    assert [gj.pairing(9, 0.6)(key, step).peer.tolist() for step in (1, 2)] == GOLDEN_COMPILED


GOLDEN_AT_RANDOM = [[1], [0], [], [], [2], [2], [1], []]
GOLDEN_COMPILED = [[8, 7, 6, 5, -1, -1, -1, -1, 0], [3, 2, 1, 0, 8, -1, -1, 5, 4]]


@pytest.mark.parametrize("graph", [gj.graphs.base(6), gj.graphs.base(3)])
def test_a_graph_that_is_made_for_turns_is_not_used_all_at_once(graph):
    with pytest.raises(ValueError, match=r"with all routes of base.* at once .*use in_turn"):
        gj.every(graph)


def test_arguments_of_the_laws_of_routes_are_checked():
    ring = gj.graphs.ring(3)
    wrong: Any = "ring(3)"
    for law in (gj.every, gj.in_turn, lambda graph: gj.at_random(graph, 0.5)):
        with pytest.raises(ValueError, match=r"graph must be a gossip_jax\.Graph; got str"):
            law(wrong)
    for law in (gj.every, gj.in_turn, lambda graph, period: gj.at_random(graph, 0.5, period)):
        with pytest.raises(ValueError, match="period must be a whole number of 1 or more"):
            law(ring, 0)
    with pytest.raises(ValueError, match=r"p must be a number in \[0, 1\]"):
        gj.at_random(ring, 1.5)
