"""Laws that hold for any number of workers, tree of parameters, type, round and moving rate."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import gossip_jax as gj

settings.register_profile("laws", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("laws")

TREES = {
    "one array": (3,),
    "nested": {"kernel": (2, 3), "rest": [(), {"empty": (0,)}]},
}
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7}


def is_shape(node: Any) -> bool:
    return isinstance(node, tuple) and all(isinstance(extent, int) for extent in node)


@st.composite
def rounds(draw, num_workers: int) -> np.ndarray:
    """Any round: each worker picks nobody or any other."""
    picks = [
        st.sampled_from([-1, *(k for k in range(num_workers) if k != i)]) for i in range(num_workers)
    ]
    return np.array([draw(pick) for pick in picks], np.int32)


@st.composite
def situations(draw, fewest: int = 1, round: Any = rounds) -> Any:
    """W workers' parameters and local updates, and a round."""
    num_workers = draw(st.sampled_from([w for w in (1, 2, 3, 5) if w >= fewest]))
    name, dtype = draw(st.sampled_from(sorted(TREES))), draw(st.sampled_from(sorted(EPSILON)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def values() -> Any:
        return jax.tree.map(
            lambda shape: jnp.asarray(rng.uniform(-1, 1, (num_workers, *shape)), dtype),
            TREES[name],
            is_leaf=is_shape,
        )

    return values(), values(), draw(round(num_workers)), dtype


alphas = st.floats(0, 1, exclude_min=True, width=32)


@functools.cache
def placed(num_workers: int, protocol: Any) -> Any:
    """One exchange: `(params, updates, round, alpha) -> params`; compiled for each type of tree."""

    def update(params: Any, updates: Any, round: gj.Round, alpha: jax.Array) -> Any:
        moved, _ = protocol(alpha).update(updates, (), params, round=round)
        return jax.tree.map(lambda p, u: p + u, params, moved)

    return gj.place(num_workers, "vmap").map(update, (0, 0, None, None))


def elastic(alpha: Any) -> Any:
    return gj.elastic_gossip(alpha)


def pull(_: Any) -> Any:
    return gj.gossiping_sgd("pull")


def push(_: Any) -> Any:
    return gj.gossiping_sgd("push")


def exchange(protocol: Any, params: Any, updates: Any, peer: np.ndarray, alpha: float = 0.5) -> Any:
    run = placed(len(peer), protocol)
    return run(params, updates, gj.Round(peer), np.float32(alpha))


def as_float64(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]


def same_bits(one: Any, other: Any, workers: Any) -> None:
    for a, b in zip(as_float64(one), as_float64(other), strict=True):
        np.testing.assert_array_equal(a[workers], b[workers])


def contacts(peer: np.ndarray) -> np.ndarray:
    return np.asarray(gj.in_contact(gj.Round(peer)))


@given(situations(), alphas)
def test_elastic_gossip_keeps_the_sum_over_workers(situation, alpha):
    params, updates, peer, dtype = situation
    moved = exchange(elastic, params, updates, peer, alpha)
    num_workers = len(peer)
    for after, before, local in zip(*map(as_float64, (moved, params, updates)), strict=True):
        # A worker adds up to W terms of size 2, each rounded, to a sum of W workers.
        tolerance = 4 * num_workers**2 * EPSILON[dtype]
        np.testing.assert_allclose(
            after.sum(axis=0), (before + local).sum(axis=0), rtol=0, atol=tolerance
        )


@given(situations(), alphas, st.sampled_from([elastic, pull, push]))
def test_idle_workers_keep_every_bit_of_their_local_update(situation, alpha, protocol):
    params, updates, peer, _ = situation
    idle = ~contacts(peer).any(axis=1)
    moved = exchange(protocol, params, updates, peer, alpha)
    same_bits(moved, jax.tree.map(lambda p, u: p + u, params, updates), idle)


@given(situations(fewest=2), alphas, st.sampled_from([elastic, pull, push]), st.randoms())
def test_workers_renamed_give_the_same_replicas_renamed(situation, alpha, protocol, random):
    params, updates, peer, dtype = situation
    name = np.array(random.sample(range(len(peer)), len(peer)))  # i's new name
    renamed_peer = np.empty_like(peer)
    renamed_peer[name] = np.where(peer >= 0, name[peer], -1)
    old = np.argsort(name)
    renamed, renamed_updates = (
        jax.tree.map(lambda leaf: leaf[old], tree) for tree in (params, updates)
    )
    plain = exchange(protocol, params, updates, peer, alpha)
    other = exchange(protocol, renamed, renamed_updates, renamed_peer, alpha)
    for a, b in zip(as_float64(plain), as_float64(other), strict=True):
        # Peers are added up in another order.
        np.testing.assert_allclose(b[name], a, rtol=0, atol=8 * len(peer) * EPSILON[dtype])


@st.composite
def one_contact(draw, num_workers: int) -> np.ndarray:
    one, other = draw(st.permutations(range(num_workers)))[:2]
    peer = np.full(num_workers, -1, np.int32)
    peer[one] = other
    if draw(st.booleans()):
        peer[other] = one
    return peer


@given(situations(fewest=2, round=one_contact))
def test_elastic_gossip_of_one_pair_at_half_rate_is_their_mean(situation):
    params, updates, peer, dtype = situation
    pair = contacts(peer).any(axis=1)
    silent = jax.tree.map(jnp.zeros_like, updates)
    moved = exchange(elastic, params, silent, peer, 0.5)
    for after, before in zip(as_float64(moved), as_float64(params), strict=True):
        mean = np.broadcast_to(before[pair].mean(axis=0), after[pair].shape)
        np.testing.assert_allclose(after[pair], mean, rtol=0, atol=4 * EPSILON[dtype])


@st.composite
def one_to_one(draw, num_workers: int) -> np.ndarray:
    """A round in which nobody is picked twice."""
    picked = np.array(draw(st.permutations(range(num_workers))))
    keep = np.array(draw(st.lists(st.booleans(), min_size=num_workers, max_size=num_workers)))
    return np.where(keep & (picked != np.arange(num_workers)), picked, -1).astype(np.int32)


@given(situations(round=one_to_one))
def test_push_is_pull_the_other_way_round(situation):
    """Whoever is sent a replica does what it would, had it fetched it."""
    params, updates, peer, _ = situation
    turned = np.full_like(peer, -1)
    turned[peer[peer >= 0]] = np.nonzero(peer >= 0)[0]
    pushed, pulled = exchange(push, params, updates, peer), exchange(pull, params, updates, turned)
    same_bits(pushed, pulled, slice(None))


@given(
    st.sampled_from([gj.uniform_peers, gj.pairing]),
    st.sampled_from([1, 2, 3, 4, 7]),
    st.floats(0, 1),
    st.integers(1, 5),
    st.integers(0, 2**32 - 1),
    st.integers(1, 2**31 - 1),
)
def test_draws_are_lawful(law, num_workers, p, period, seed, step):
    draw = law(num_workers, p, period)
    round = draw(gj.keys.run_key(seed), step)
    peer, workers = np.asarray(round.peer), np.arange(num_workers)
    assert peer.shape == (num_workers,)
    assert peer.dtype == np.int32
    assert round.step == step
    assert ((peer >= -1) & (peer < num_workers) & (peer != workers)).all()
    if step % period or p == 0 or num_workers == 1:
        assert (peer == -1).all()
    elif p == 1:
        assert (peer >= 0).sum() >= num_workers - (law is gj.pairing) * (num_workers % 2)
    if law is gj.pairing:
        assert contacts(peer).sum(axis=1).max(initial=0) <= 1
    again = law(num_workers, p, period)(gj.keys.run_key(seed), step)
    np.testing.assert_array_equal(again.peer, peer)


@given(st.sampled_from([1, 2, 3, 5, 8]).flatmap(rounds))
def test_contacts_are_symmetric_and_never_with_oneself(peer):
    contact, picked = contacts(peer), np.asarray(gj.initiated(gj.Round(peer)))
    np.testing.assert_array_equal(contact, contact.T)
    assert not contact.diagonal().any()
    np.testing.assert_array_equal(picked.sum(axis=1), peer >= 0)
    np.testing.assert_array_equal(contact, picked | picked.T)
