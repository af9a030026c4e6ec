"""What protocols keep, whatever they learn; and what they survive."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from decentral_cases import (
    CASES,
    UPDATES,
    as_matrices,
    drawn,
    joined,
    of_type,
    peers,
    ring,
    run,
    values,
)

import gossip_jax as gj
from gossip_jax import compression, graphs
from gossip_jax.protocols._pushing import PushState


@pytest.mark.parametrize("name", ["gradient_tracking", "exact_diffusion", "exact_diffusion, D²"])
def test_corrections_sum_to_zero(name, rng):
    (case,) = [case for case in CASES if case.name == name]
    start, gradients = values(rng, 5)
    _, state = run(case.make(), drawn(case.draw(5)), start, gradients)
    (kind,) = {
        type(node)
        for node in jax.tree.leaves(state, is_leaf=lambda node: hasattr(node, "correction"))
        if hasattr(node, "correction")
    }
    correction = joined(of_type(state, kind).correction)
    assert np.abs(correction).max() > 0.1
    np.testing.assert_allclose(correction.sum(axis=0), 0, atol=1e-5)


def test_choco_pulls_towards_what_neighbours_have_made_public(rng):
    start, gradients = values(rng, 5)
    rounds = drawn(ring(5))
    _, state = run(gj.choco(compression.top_k(0.3), 0.3), rounds, start, gradients)
    found = of_type(state, gj.protocols.choco.ChocoState)
    public = joined(found.public)
    mixing = as_matrices(rounds).mixing[0]
    np.testing.assert_allclose(joined(found.pull), mixing @ public - public, atol=1e-5)


@pytest.mark.parametrize(
    "case", {case.protocol: case for case in CASES}.values(), ids=lambda case: case.name
)
def test_a_learning_rate_of_zero_at_first_does_no_harm(case, rng):
    def warm_up(count):
        return jnp.where(count < 5, 0.0, 0.1)

    start, gradients = values(rng, 4)
    found, state = run(
        case.make(), drawn(case.draw(4)), start, gradients, local=optax.sgd(warm_up, momentum=0.9)
    )
    assert np.isfinite(found).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    assert np.abs(found[-1] - start).max() > 0.01
    np.testing.assert_allclose(found[3], start, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (gj.exact_diffusion, peers),
        (gj.exact_diffusion, lambda w: gj.every(graphs.ring(w), period=2)),
        (gj.exact_diffusion, lambda w: gj.in_turn(graphs.hypercube(w))),
        (lambda: gj.choco(compression.sign(), 0.3), peers),
        (lambda: gj.choco(compression.sign(), 0.3), lambda w: gj.at_random(graphs.ring(w), 0.5)),
    ],
)
def test_graphs_that_change_are_refused_where_they_must_not(make, draw, rng):
    start, gradients = values(rng, 4)
    with pytest.raises(ValueError, match=r"graph that stays the same.*gossip_jax\.every\(graph\)"):
        run(make(), drawn(draw(4)), start, gradients)


def test_weights_that_would_not_do_are_refused(rng):
    start, gradients = values(rng, 4)
    with pytest.raises(ValueError, match=r"eigenvalue of -1/3 or below.*-0\.3333; use weights='half'"):
        run(gj.exact_diffusion("whole"), drawn(ring(4)), start, gradients)
    directed = gj.every(graphs.exponential(4))
    with pytest.raises(ValueError, match="are not symmetric; use an undirected graph"):
        run(gj.exact_diffusion(), drawn(directed), start, gradients)
    uneven = gj.every(gj.Graph("uneven", [[1, 2, 3, 0]], [[0.1, 0.2, 0.3, 0.4]]))
    with pytest.raises(
        ValueError, match="must keep the sum over workers, and that over uneven does not"
    ):
        run(gj.gradient_tracking(), drawn(uneven), start, gradients)
    away = drawn(directed).replace(away=jnp.zeros((UPDATES, 4), bool))
    with pytest.raises(ValueError, match="does not where one is away"):
        run(gj.gradient_tracking(), away, start, gradients)


def test_protocols_that_cannot_be_late_are_refused():
    for protocol in (gj.dpsgd("atc"), gj.all_reduce(), optax.sgd(0.1)):
        with pytest.raises(ValueError, match="protocol must be push_sum, gosgd"):
            gj.delayed(protocol)


def test_those_that_go_around_the_optimizer_say_so():
    for protocol in (gj.post_local_sgd(3, 2), gj.gradient_tracking("gradients")):
        with pytest.raises(ValueError, match="goes around the local optimizer"):
            protocol.update({}, protocol.init({}), {}, round=None)


def test_push_sum_comes_to_the_mean_of_those_who_are_there(rng):
    """Absent workers neither send nor receive; the others lose nothing to them."""
    start, rounds = rng.normal(size=(5, 13)), drawn(gj.every(graphs.exponential(5)), 40)
    away = np.zeros((40, 5), bool)
    away[:, 3] = True
    absent = gj.absence.without(rounds, away)
    found, state = run(gj.push_sum(), absent, start, np.zeros((40, 5, 13)))
    np.testing.assert_array_equal(found[-1][3], start.astype(np.float32)[3])
    there = [0, 1, 2, 4]
    wanted = np.broadcast_to(start[there].mean(axis=0), (4, 13))
    np.testing.assert_allclose(found[-1][there], wanted, atol=1e-5)
    weight = of_type(state, PushState).weight
    assert weight[3] == 1
    assert np.abs(weight[there] - 1).max() > 0.01


def test_all_draws_are_the_same_whatever_jax_says_of_threefry():
    key = gj.keys.run_key(1)
    chain = graphs.chain(4)
    for draw in (
        gj.uniform_peers(4, 0.5),
        gj.pairing(4, 0.5),
        gj.at_random(chain, 0.5),
        gj.independently(chain, [0.3, 0.6]),
    ):
        rounds = [jax.vmap(lambda step, draw=draw: draw(key, step))(jnp.arange(1, 30))]
        with jax.threefry_partitionable(False):
            rounds.append(jax.vmap(lambda step, draw=draw: draw(key, step))(jnp.arange(1, 30)))
        for one, other in zip(*map(jax.tree.leaves, rounds), strict=True):
            np.testing.assert_array_equal(one, other)
