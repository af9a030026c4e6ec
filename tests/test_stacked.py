"""Stacked replicas in one jit with shardings: who talks sends its replica, and nothing gathers all."""

import contextlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hlo import collectives, computations, unconditional
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import gossip_jax as gj

CHAIN = optax.chain(optax.sgd(0.1, momentum=0.9), gj.elastic_gossip(0.5))
ROUNDS = [gj.Round([1, -1, 3, -1], 1), gj.Round([-1] * 4, 2), gj.Round([2, -1, -1, 0], 3)]
SHAPES = {"in": (64, 256), "out": (256, 192)}  # of one replica


def loss(params: Any, batch: Any) -> jax.Array:
    return jnp.mean((jnp.tanh(batch @ params["in"]) @ params["out"]) ** 2)


@pytest.fixture(scope="module")
def problem() -> tuple[Any, np.ndarray, Any]:
    """Parameters of one worker, batches [T, W, ...], and the replicas after training under vmap."""
    rng = np.random.default_rng(0)
    params = {name: rng.uniform(-0.2, 0.2, s).astype(np.float32) for name, s in SHAPES.items()}
    batches = rng.normal(size=(len(ROUNDS), 4, 16, 64)).astype(np.float32)

    def one(params, state, batch, round):
        updates, state = CHAIN.update(jax.grad(loss)(params, batch), state, params, round=round)
        return optax.apply_updates(params, updates), state

    place = gj.place(4, "vmap")
    replicas, run = place.replicate(params), place.map(one, (0, 0, 0, None))
    state = jax.vmap(CHAIN.init)(replicas)
    for batch, round in zip(batches, ROUNDS, strict=True):
        replicas, state = run(replicas, state, batch, round)
    return params, batches, jax.device_get(replicas)


# shape and axes of the mesh, their kind, whether it is set or given, and how replicas are divided
WAYS = {
    "auto, given": ((4,), AxisType.Auto, "given", P("workers")),
    "auto, set": ((4,), AxisType.Auto, "set", P("workers")),
    "explicit": ((4,), AxisType.Explicit, "neither", P("workers")),
    "explicit, set": ((4,), AxisType.Explicit, "set", P("workers")),
    "two a device, auto": ((2,), AxisType.Auto, "given", P("workers")),
    "two a device, explicit": ((2,), AxisType.Explicit, "neither", P("workers")),
    "on two devices each, auto": ((4, 2), AxisType.Auto, "set", P("workers", None, "data")),
    "on two devices each, explicit": ((4, 2), AxisType.Explicit, "neither", P("workers")),
}


@pytest.mark.parametrize("way", WAYS)
def test_stacked_replicas_train_as_under_vmap_and_gather_nothing(way, problem):
    shape, kind, use, spec = WAYS[way]
    params, batches, want = problem
    axes = ("workers", "data")[: len(shape)]
    mesh = jax.make_mesh(shape, axes, axis_types=(kind,) * len(shape))
    optimizer = gj.stacked(CHAIN, mesh=mesh if use == "given" else None)

    @jax.jit
    def step(replicas, state, batch, round):
        grads = jax.vmap(jax.grad(loss))(replicas, batch)
        updates, state = optimizer.update(grads, state, replicas, round=round)
        return optax.apply_updates(replicas, updates), state

    with jax.set_mesh(mesh) if use == "set" else contextlib.nullcontext():
        stacked = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (4, *leaf.shape)), params)
        replicas = jax.device_put(stacked, NamedSharding(mesh, spec))
        if use == "set":
            state = jax.jit(optimizer.init)(replicas)
        else:  # zeros do not depend on the replicas, so that by themselves JAX puts them on no mesh
            state = jax.device_put(optimizer.init(stacked), NamedSharding(mesh, spec))
        batches = [jax.device_put(batch, NamedSharding(mesh, P("workers"))) for batch in batches]
        program = step.lower(replicas, state, batches[0], ROUNDS[0]).compile().as_text() or ""
        for batch, round in zip(batches, ROUNDS, strict=True):
            replicas, state = step(replicas, state, batch, round)
    found = jax.device_get(replicas)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), found, want)

    sent = [i for part in computations(program)[0].values() for i in collectives(part)]
    permutes = [i for i in sent if i.opcode.startswith("collective-permute")]
    assert permutes, "the checker must see what is sent"
    always = [i for i in unconditional(program) if i in permutes]
    assert always == [], "only where the round says so"
    # Who holds a part of a replica gathers, for its gradient, its own at most; never those of others.
    gathered = [re.findall(r"f32\[([\d,]+)\]", i.shape) for i in sent if i.opcode == "all-gather"]
    extents = {tuple(map(int, shape.split(","))) for of in gathered for shape in of}
    if "data" not in axes:
        assert not extents
    assert not any(extent[0] == 4 and extent[1:] in SHAPES.values() for extent in extents)


def test_what_is_wrong_with_a_mesh_is_said():
    params = jnp.zeros((4, 3))
    state = gj.stacked(CHAIN).init(params)

    def update(optimizer):
        return optimizer.update(params, state, params, round=ROUNDS[0])

    with pytest.raises(ValueError, match="there is no mesh with an axis 'workers' here; pass mesh="):
        update(gj.stacked(CHAIN))
    data = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    with pytest.raises(ValueError, match="the mesh must have an axis 'workers' for the workers"):
        update(gj.stacked(CHAIN, mesh=data))
    three = jax.make_mesh((3,), ("workers",), axis_types=(AxisType.Auto,))
    with pytest.raises(ValueError, match="4 workers cannot be shared equally by the 3 devices"):
        update(gj.stacked(CHAIN, mesh=three))
