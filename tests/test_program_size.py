"""Property 8, and memory: a program holds one exchange a route and part, and few replicas."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from cases import AXES
from hlo import collectives, computations
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import gossip_jax as gj

KEY = gj.keys.run_key(0)
LARGE = (200, 300)  # of a leaf: 240 kB, beyond what is packed with others
PARTS = 3  # leaves of that size; each travels by itself
MESSAGES = PARTS + 1  # and the small ones together

DRAWS = {
    "a ring, all at once": lambda w: gj.every(gj.graphs.ring(w)),
    "a ring, now and then": lambda w: gj.every(gj.graphs.ring(w), period=2),
    "a one-peer exponential graph": lambda w: gj.in_turn(gj.graphs.exponential(w)),
    "a static exponential graph": lambda w: gj.every(gj.graphs.exponential(w)),
    "pairing": lambda w: gj.pairing(w, 0.5, routes="matchings", among="compiled"),
    "peers over matchings": lambda w: gj.uniform_peers(w, 0.5, routes="matchings"),
    "a base graph": lambda w: gj.in_turn(gj.graphs.base(w)),
}


def update(params: Any, updates: Any, round: gj.Round) -> Any:
    protocol = gj.dpsgd()
    updates, _ = protocol.update(updates, protocol.init(params), params, round=round)
    return jax.tree.map(jnp.add, params, updates)


def tree(num_workers: int) -> Any:
    """Three leaves that travel by themselves, and three that are packed with one another."""
    large = {
        f"large {i}": jax.ShapeDtypeStruct((num_workers, *LARGE), jnp.float32) for i in range(PARTS)
    }
    return large | {
        f"small {i}": jax.ShapeDtypeStruct((num_workers, 3 + i), jnp.float32) for i in range(3)
    }


@pytest.mark.parametrize("name", DRAWS)
def test_a_compiled_program_has_each_route_once_for_each_message(name):
    draw = DRAWS[name](8)
    placed: Any = gj.place(8, "pmap").map(update, AXES)
    program = placed.lower(tree(8), tree(8), draw(KEY, 1)).compile().as_text()
    sent = [i for part in computations(program)[0].values() for i in collectives(part)]
    sent = [i for i in sent if not i.opcode.endswith("-done")]
    assert {i.opcode.removesuffix("-start") for i in sent} == {"collective-permute"}
    assert len(sent) == MESSAGES * draw.graph.num_routes


@pytest.mark.parametrize(
    ("name", "routes"), [("peers over matchings", 15), ("pairing", 15), ("a ring, all at once", 2)]
)
def test_sixteen_workers_have_a_program_of_as_many_exchanges_as_routes(name, routes):
    """Lowered for sixteen devices that are not there; by default the routes of K_16 are matchings."""
    mesh = AbstractMesh((16,), ("workers",))
    draw = {
        "peers over matchings": lambda w: gj.uniform_peers(w, 0.5),
        "pairing": lambda w: gj.pairing(w, 1.0),
    }.get(name, DRAWS[name])(16)
    assert draw.graph.num_routes == routes

    def block(params, updates, round):
        params, updates = jax.tree.map(lambda leaf: leaf[0], (params, updates))
        return jax.tree.map(lambda leaf: leaf[None], update(params, updates, round))

    specs = {"in_specs": (P("workers"), P("workers"), P()), "out_specs": P("workers")}
    mapped = jax.jit(jax.shard_map(block, mesh=mesh, check_vma=False, **specs))
    lowered = mapped.trace(tree(16), tree(16), draw(KEY, 1)).lower(lowering_platforms=("cpu",))
    permutes = lowered.as_text().count("stablehlo.collective_permute")
    assert permutes == MESSAGES * routes


@pytest.mark.parametrize("num_workers", [4, 64])
def test_under_vmap_a_program_is_as_large_for_many_workers_as_for_few(num_workers):
    """A source is looked up by its index: the graph is data there."""
    round = gj.uniform_peers(num_workers, 0.5, routes="matchings")(KEY, 1)
    lowered = (
        gj.place(num_workers, "vmap")
        .map(update, AXES)
        .lower(tree(num_workers), tree(num_workers), round)
    )
    lines = len(lowered.as_text().splitlines())
    assert lines == lines_of_four()


@functools.cache
def lines_of_four() -> int:
    round = gj.uniform_peers(4, 0.5, routes="matchings")(KEY, 1)
    return len(
        gj.place(4, "vmap").map(update, AXES).lower(tree(4), tree(4), round).as_text().splitlines()
    )


def replicas_held(protocol: Any, round: gj.Round, num_leaves: int = 4, width: int = 256) -> float:
    """What a training step needs on one device, in replicas, with its state donated."""
    optimizer = optax.chain(optax.sgd(0.1), protocol)

    def step(params, state, batch, round):
        def loss(params):
            hidden = batch
            for kernel in params:
                hidden = jnp.tanh(hidden @ kernel)
            return jnp.mean(hidden**2)

        updates, state = optimizer.update(jax.grad(loss)(params), state, params, round=round)
        return optax.apply_updates(params, updates), state

    place = gj.place(4, "pmap", devices=jax.devices()[:4])
    params = [jnp.zeros((4, width, width)) for _ in range(num_leaves)]
    placed: Any = place.map(step, (0, 0, 0, None), donate_argnums=(0,))
    lowered = placed.lower(params, jax.vmap(optimizer.init)(params), jnp.zeros((4, 8, width)), round)
    # Optimized as in use, whatever the tests are compiled with.
    compiled = lowered.compile(compiler_options={"xla_backend_optimization_level": 3})
    memory = compiled.memory_analysis()
    sizes = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return (sizes - memory.alias_size_in_bytes) / (num_leaves * width * width * 4)


def test_an_exchange_needs_less_than_a_replica_and_a_half_of_memory_and_no_more_in_a_narrow_type():
    """The bound of the project's issue 11, on what it was 3 of."""
    round = gj.Round([-1] * 4)
    without = replicas_held(gj.no_communication(), round)
    gossip, narrow = (
        replicas_held(gj.elastic_gossip(0.5, wire_dtype=wire), round) for wire in (None, "bfloat16")
    )
    print(f"replicas: {without:.2f} without, {gossip:.2f} with gossip, {narrow:.2f} in bfloat16")
    assert gossip - without <= 1.5, (without, gossip)
    assert narrow <= gossip, (narrow, gossip)
