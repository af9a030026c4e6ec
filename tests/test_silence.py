"""Properties 3 and 4: silence is free, and only the two who talk pay. Shown on the compiled program."""

import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import AXES, BACKENDS, CASES, PAIRWISE, possible_exchanges
from hlo import Instruction, collectives, computations, mixing, unconditional

import gossip_jax as gj
from gossip_jax import rounds

SIZE = 1237  # of a replica: a prime, so that no other array of the program has it as an extent


def compiled(function: Any, backend: Any, num_workers: int, arguments: Any, in_axes: Any = AXES) -> str:
    """The optimized program, for all workers."""
    placed: Any = gj.place(num_workers, backend).map(function, in_axes)
    # Optimized as in use, whatever the tests are compiled with.
    options = {"xla_backend_optimization_level": 3}
    return placed.lower(*arguments).compile(compiler_options=options).as_text()


def update_arguments(case: Any, num_workers: int) -> tuple[Any, ...]:
    replicas = jnp.zeros((num_workers, SIZE))
    return (replicas, case.state(replicas)), replicas, gj.Round(np.full(num_workers, -1))


def exchanges_outside_conditionals(program: str, backend: str) -> list[Instruction]:
    always = unconditional(program)
    return mixing(always, SIZE) if backend == "vmap" else collectives(always)


def all_exchanges(program: str, backend: str) -> list[Instruction]:
    everything = [i for part in computations(program)[0].values() for i in part]
    return mixing(everything, SIZE) if backend == "vmap" else collectives(everything)


@pytest.mark.parametrize(
    ("backend", "num_workers"),
    [
        ("vmap", 4),
        ("pmap", 4),
        pytest.param("pmap", 8, marks=pytest.mark.slow),
        pytest.param("shard_map", 4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("case", [c for c in CASES if c.needs_round], ids=lambda case: case.name)
def test_nothing_is_exchanged_outside_a_conditional(case, backend, num_workers):
    program = compiled(case.one_update(), backend, num_workers, update_arguments(case, num_workers))
    assert all_exchanges(program, backend), "the checker must see the exchanges that there are"
    assert exchanges_outside_conditionals(program, backend) == []


@pytest.mark.parametrize(
    ("backend", "num_workers"),
    [
        ("pmap", 4),
        ("shard_map", 5),
        *(
            pytest.param(backend, number, marks=pytest.mark.slow)
            for backend, number in (("pmap", 5), ("pmap", 8), ("shard_map", 4), ("shard_map", 8))
        ),
    ],
)
@pytest.mark.parametrize("case", PAIRWISE, ids=lambda case: case.name)
def test_each_exchange_swaps_one_pair_or_a_whole_matching_by_itself(case, backend, num_workers):
    program = compiled(case.one_update(), backend, num_workers, update_arguments(case, num_workers))
    seen = Counter()
    for part in computations(program)[0].values():
        of_part = Counter()
        for instruction in collectives(part):
            if instruction.opcode.endswith("-done"):
                continue
            assert instruction.opcode.startswith("collective-permute")
            listed = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)+)\}", instruction.line)
            assert listed
            ends = {int(a): int(b) for a, b in re.findall(r"(\d+),(\d+)", listed[1])}
            assert all(ends[ends[worker]] == worker for worker in ends), "workers swap, in pairs"
            assert all(a != b for a, b in ends.items()), "who is in no pair sends nothing"
            of_part[frozenset((a, b) for a, b in ends.items() if a < b)] += 1
        assert len(of_part) <= 1, "a conditional to itself for each exchange"
        seen += of_part
    assert seen.keys() == possible_exchanges(num_workers)
    assert set(seen.values()) == {1}, "a route is compiled once"


@pytest.mark.parametrize("backend", ["vmap", "pmap"])
@pytest.mark.parametrize("case", [c for c in CASES if c.needs_round], ids=lambda case: case.name)
def test_nothing_is_exchanged_outside_a_conditional_of_an_epoch(case, backend):
    """The same for a whole epoch with a model and an optimizer with state, as one loop."""
    num_workers, num_updates = 4, 3

    def loss(params, model_state, batch, key):
        inputs, targets = batch
        inputs = inputs + 0.1 * jax.random.normal(key, inputs.shape)
        return jnp.mean(
            (inputs * params["scale"][None] + params["shift"][None] - targets) ** 2
        ), model_state

    optimizer = case.chain(optax.sgd(0.1, momentum=0.9, nesterov=True))
    params = {
        "scale": jnp.ones((num_workers, SIZE)),
        "shift": jnp.ones((num_workers, 3 * SIZE))[:, ::3],
    }
    state = jax.vmap(lambda params: gj.training.init_worker(params, {}, optimizer))(params)
    shard = jnp.zeros((2, num_workers, 2 * num_updates, SIZE))
    draw = gj.uniform_peers(num_workers, p=0.5)
    drawn = gj.training.draw_rounds(draw, gj.keys.run_key(0), 1, num_updates)
    arguments = (state, tuple(shard), drawn, gj.keys.run_key(0))
    epoch = gj.training.train_epoch(loss, optimizer, batch_size=2)
    program = compiled(epoch, backend, num_workers, arguments, (0, 0, None, None))
    if backend != "vmap":
        assert collectives(unconditional(program)) == []
    # Under vmap batches are gathered at every update, which the checker cannot tell from replicas.
    assert [i for i in unconditional(program) if i.opcode == "conditional"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_silence_is_free_also_where_the_moving_rate_is_in_each_workers_state(backend):
    """Whether to talk follows from the round alone, not from what each worker holds."""
    gossip = optax.inject_hyperparams(gj.elastic_gossip)(alpha=0.5)

    def update(carry, updates, round):
        params, state = carry
        updates, state = gossip.update(updates, state, params, round=round)
        return optax.apply_updates(params, updates), state

    replicas = jnp.zeros((4, SIZE))
    state = jax.vmap(gossip.init)(replicas)
    program = compiled(update, backend, 4, ((replicas, state), replicas, gj.Round([-1] * 4)))
    assert exchanges_outside_conditionals(program, backend) == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", PAIRWISE, ids=lambda case: case.name)
def test_a_round_known_to_be_silent_leaves_nothing_in_the_program(case, backend):
    update = case.one_update()

    def silent_update(carry, updates, step):
        return update(carry, updates, rounds.silence(4, step))

    carry, updates, _ = update_arguments(case, 4)
    program = compiled(silent_update, backend, 4, (carry, updates, jnp.int32(1)))
    instructions = [i for part in computations(program)[0].values() for i in part]
    assert not [i for i in instructions if i.opcode == "conditional"]
    assert all_exchanges(program, backend) == []


def always_exchanging(params: Any, updates: Any, round: Any) -> Any:
    """The exchange as it must not be: at every update, and multiplied by zero where nobody talks."""
    theta, state = params
    theirs = jax.lax.ppermute(theta, "workers", [(0, 1), (1, 0), (2, 2), (3, 3)])
    active = (round.peer[0] == 1).astype(jnp.float32)
    return theta + updates + active * (theirs - theta) / 2, state


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_checker_sees_an_exchange_outside_a_conditional(backend):
    program = compiled(always_exchanging, backend, 4, update_arguments(PAIRWISE[0], 4))
    assert exchanges_outside_conditionals(program, backend)


def test_the_checker_sees_that_a_stacked_round_makes_a_conditional_a_select():
    """Under vmap, where each worker has a predicate of its own, all branches run: so share rounds."""
    case = PAIRWISE[0]
    carry, updates, round = update_arguments(case, 4)
    stacked = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (4, *leaf.shape)), round)
    program = compiled(case.one_update(), "vmap", 4, (carry, updates, stacked), (0, 0, 0))
    assert exchanges_outside_conditionals(program, "vmap")
