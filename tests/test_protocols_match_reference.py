"""Every protocol does what the thesis's table of updates says, in every backend, W and dtype."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
import toy
from cases import AXES, BACKENDS, BACKENDS_AND_WORKERS, CASES, Case, random_peers, telling_peers

import gossip_jax as gj

# A worker adds up at most eight terms, each of one product and of values up to 2: that many roundings.
ROUNDINGS = 16

F32, BF16 = np.dtype(np.float32), np.dtype(jnp.bfloat16)
DTYPES = {  # of the parameters, leaf after leaf in turn; of the updates, where they differ
    "float32 and bfloat16": ((F32, BF16), None),
    "float32": ((F32,), None),
    "bfloat16": ((BF16,), None),
    "bfloat16 with float32 updates": ((BF16,), F32),
}


def random_tree(rng: np.random.Generator, num_workers: int, dtypes: tuple[np.dtype, ...]) -> Any:
    """Stacked parameters with leaves of every rank, nested, and with empty parts."""
    shapes = {
        "layers": [{"kernel": (3, 2)}, {"bias": (5,), "none": None}],
        "scale": (),
        "no_leaves": {},
    }
    leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    values = [
        rng.uniform(-1, 1, (num_workers, *shape)).astype(dtypes[i % len(dtypes)])
        for i, shape in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, values)


def assert_matches(case: Case, actual: Any, peer, step: int, params: Any, updates: Any, center: Any):
    """Compares parameters and centre, leaf by leaf, with the oracle in float64."""
    new_params, state = actual
    new_center = jax.tree.leaves(state)
    for i, (new, theta, u, c) in enumerate(
        zip(*map(jax.tree.leaves, (new_params, params, updates, center)), strict=True)
    ):
        assert new.dtype == theta.dtype, "an update must keep the dtype of its parameter"
        want, want_center = case.oracle(
            peer, step, theta.astype(np.float64), u.astype(np.float64), c[0].astype(np.float64)
        )
        limit = ROUNDINGS * float(jnp.finfo(theta.dtype).eps)
        np.testing.assert_allclose(new.astype(np.float64), want, rtol=0, atol=limit)
        if new_center:
            assert new_center[i].dtype == c.dtype
            every = np.broadcast_to(want_center, c.shape)
            np.testing.assert_allclose(new_center[i].astype(np.float64), every, rtol=0, atol=limit)


def check(case: Case, backend: Any, num_workers: int, dtype: str, rng: np.random.Generator) -> None:
    dtypes, updates_dtype = DTYPES[dtype]
    placement = gj.place(num_workers, backend)
    update = placement.map(case.one_update(), in_axes=AXES)
    for step, peer in enumerate(telling_peers(rng, num_workers), start=1):
        params, updates, center = (random_tree(rng, num_workers, dtypes) for _ in range(3))
        if updates_dtype is not None:
            updates = jax.tree.map(lambda leaf: leaf.astype(updates_dtype), updates)
        center = jax.tree.map(lambda leaf: np.broadcast_to(leaf[:1], leaf.shape), center)
        carry = placement.scatter((params, case.state(center)))
        actual = update(carry, placement.scatter(updates), gj.Round(peer, step))
        assert_matches(case, jax.device_get(actual), peer, step, params, updates, center)


@pytest.mark.parametrize(("backend", "num_workers"), BACKENDS_AND_WORKERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_update_matches_the_reference(case, backend, num_workers, rng):
    check(case, backend, num_workers, "float32 and bfloat16", rng)


@pytest.mark.parametrize("dtype", sorted(DTYPES.keys() - {"float32 and bfloat16"}))
@pytest.mark.parametrize(
    ("backend", "num_workers"),
    [
        ("vmap", 3),
        *(
            pytest.param(backend, number, marks=pytest.mark.slow)
            for backend, number in (("pmap", 3), ("shard_map", 1))
        ),
    ],
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_leaves_can_be_of_one_dtype_and_the_updates_of_another(
    case, backend, num_workers, dtype, rng
):
    check(case, backend, num_workers, dtype, rng)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_parameters_without_leaves_pass_through(case):
    update = gj.place(3, "vmap").map(case.one_update(), in_axes=AXES)
    assert update(({}, case.state({})), {}, gj.Round([1, -1, 0], step=2))[0] == {}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_worker_is_plain_sgd_to_the_bit(case, backend, rng):
    sgd = optax.sgd(0.1, momentum=0.9, nesterov=True)
    optimizer = case.chain(sgd)
    params = rng.normal(size=(1, 5)).astype(np.float32)
    grads = rng.normal(size=(6, 1, 5)).astype(np.float32)

    def run(transformation):
        rounds = gj.Round(np.full((6, 1), -1), np.arange(1, 7))
        mapped = gj.place(1, backend).map(toy.scan_updates(transformation), in_axes=(0, 0, None))
        return np.asarray(mapped(params, grads.swapaxes(0, 1), rounds))

    np.testing.assert_array_equal(run(optimizer), run(optax.with_extra_args_support(sgd)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_update_runs_inside_scan_and_cond(case, backend, rng):
    """Every second update of a scan is left out, by a conditional that all workers agree on."""
    num_workers, num_updates = 4, 6
    update = case.one_update()

    def run(carry, updates, rounds):
        def step(carry, inputs):
            updates, round = inputs
            due = round.step % 2 == 0
            return jax.lax.cond(due, lambda c: update(c, updates, round), lambda c: c, carry), None

        return jax.lax.scan(step, carry, (updates, rounds))[0]

    peers = np.stack([random_peers(rng, num_workers) for _ in range(num_updates)])
    params, center = rng.uniform(-1, 1, (2, num_workers, 3)).astype(np.float32)
    center[:] = center[0]
    updates = rng.uniform(-1, 1, (num_updates, num_workers, 3)).astype(np.float32)
    mapped = gj.place(num_workers, backend).map(run, in_axes=AXES)
    rounds = gj.Round(peers, np.arange(1, num_updates + 1))
    actual, _ = mapped((params, case.state(center)), updates.swapaxes(0, 1), rounds)

    want, want_center = params.astype(np.float64), center[0].astype(np.float64)
    for step in range(2, num_updates + 1, 2):
        want, want_center = case.oracle(peers[step - 1], step, want, updates[step - 1], want_center)
    # Three updates of each up to 1 more: the values, and with them the roundings, are larger.
    np.testing.assert_allclose(actual, want, rtol=0, atol=1e-5)


def test_the_reference_agrees_with_worked_examples():
    """The oracle against numbers worked out by hand from the thesis's table."""
    theta = np.array([[0.0], [4.0], [8.0]])
    still, peer = np.zeros((3, 1)), np.array([2, 2, -1])  # 0 and 1 both pick 2
    examples = {
        "elastic": (reference.elastic_gossip(0.5), [4.0, 6.0, 2.0]),  # 8 - ½ 8 - ½ 4
        "pull": (reference.gossiping_sgd_pull, [4.0, 6.0, 8.0]),
        "push": (reference.gossiping_sgd_push, [0.0, 4.0, 4.0]),  # the mean of all three
        "easgd": (reference.elastic_averaging(0.5, 1), [0.5, 2.5, 4.5]),  # centre 1
        "all_reduce": (reference.all_reduce, [0.0, 4.0, 8.0]),
    }
    for name, (update, want) in examples.items():
        new, center = update(peer, 1, theta, still, np.ones(1))
        assert new.ravel().tolist() == want, name
        assert center.tolist() == ([5.5] if name == "easgd" else [1.0])  # 1 + ½ (-1 + 3 + 7)
