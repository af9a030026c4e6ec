"""An epoch is what a Python loop of its updates is, and goes through each shard once, shuffled."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy
from cases import BACKENDS, CASES
from hlo import collectives, computations

import gossip_jax as gj
from gossip_jax import training

NUM_WORKERS = 4
KEY = gj.keys.run_key(5)
DRAW = gj.uniform_peers(NUM_WORKERS, p=0.2)  # two rounds of five are silent
AXES = (0, 0, None, None)  # of an epoch: the rounds and the key are shared


def recording(params: Any, model_state: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
    """A loss that notes in its model state which examples it saw, and a number drawn from its key."""
    inputs, ids = batch
    seen, noise, count = model_state
    seen = seen.at[count].set(ids)
    noise = noise.at[count].set(jax.random.uniform(key))
    return jnp.mean((inputs @ params - 1) ** 2), (seen, noise, count + 1)


def recorded_epochs(case: Any, backend: Any, epochs: int, num_updates: int = 5, batch_size: int = 4):
    """The state after some epochs, all that it recorded [W, T, ...], and the losses of each epoch."""
    optimizer = case.chain(optax.sgd(0.05, momentum=0.9))
    total = epochs * num_updates
    model_state = (jnp.full((total, batch_size), -1), jnp.zeros(total), jnp.int32(0))
    first = training.init_worker(jnp.zeros(6), model_state, optimizer)
    placement = gj.place(NUM_WORKERS, backend)
    state = placement.scatter(toy.stack(jax.device_get(first), NUM_WORKERS))
    inputs, _ = toy.shards(NUM_WORKERS)
    ids = np.tile(np.arange(toy.EXAMPLES, dtype=np.int32), (NUM_WORKERS, 1))
    epoch = placement.map(training.train_epoch(recording, optimizer, batch_size), AXES)
    losses = []
    every = training.draw_rounds(DRAW, KEY, 1, total)
    for start in range(0, total, num_updates):
        rounds = jax.tree.map(lambda leaf, start=start: leaf[start : start + num_updates], every)
        state, loss = epoch(state, (inputs, ids), rounds, KEY)
        losses.append(np.asarray(loss))
    return state, (inputs, ids), losses


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_epoch_is_a_loop_of_updates(case):
    """Two epochs against a Python loop over the batches that they say they used."""
    state, (inputs, ids), losses = recorded_epochs(case, "vmap", epochs=2)
    seen = np.asarray(state.model_state[0])  # [W, T, B]

    optimizer = case.chain(optax.sgd(0.05, momentum=0.9))
    update = gj.place(NUM_WORKERS, "vmap").map(training.train_update(recording, optimizer), AXES)
    model_state = (jnp.zeros((10, 4), jnp.int32), jnp.zeros(10), jnp.int32(0))
    first = training.init_worker(jnp.zeros(6), model_state, optimizer)
    looped, loop_losses = toy.stack(jax.device_get(first), NUM_WORKERS), []
    rounds = training.draw_rounds(DRAW, KEY, 1, 10)
    for t in range(10):
        rows = np.arange(NUM_WORKERS)[:, None], seen[:, t]
        round = jax.tree.map(lambda leaf, t=t: leaf[t], rounds)
        looped, loss = update(looped, (inputs[rows], ids[rows]), round, KEY)
        loop_losses.append(np.asarray(loss))
    # Ten updates of float32 parameters up to 1, compiled as a scan and one by one.
    np.testing.assert_allclose(state.params, looped.params, rtol=0, atol=1e-6)
    for actual, want in zip(
        jax.tree.leaves(state.opt_state), jax.tree.leaves(looped.opt_state), strict=True
    ):
        np.testing.assert_allclose(actual, want, rtol=0, atol=1e-6)
    want = np.mean(np.reshape(loop_losses, (2, 5, NUM_WORKERS)), axis=1)
    np.testing.assert_allclose(losses, want, rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_epoch_uses_no_example_twice_and_is_shuffled_anew_for_each_worker(backend):
    state, _, _ = recorded_epochs(CASES[0], backend, epochs=2)
    seen, noise, count = jax.device_get(state.model_state)
    assert (count == 10).all(), "one update for each round"
    orders = seen.reshape(NUM_WORKERS * 2, 20)  # of each worker and epoch
    for order in orders:
        assert len(set(order)) == 20
        assert set(order) <= set(range(toy.EXAMPLES))
    assert len({tuple(order) for order in orders}) == NUM_WORKERS * 2
    assert len(set(noise.ravel())) == NUM_WORKERS * 10, "each worker and update has a key of its own"


def test_examples_left_over_in_one_epoch_come_in_another():
    state, _, _ = recorded_epochs(CASES[0], "vmap", epochs=4)
    for worker in np.asarray(state.model_state[0]):
        assert set(worker.ravel()) == set(range(toy.EXAMPLES))


def test_the_rounds_of_a_run_do_not_depend_on_how_it_is_cut_into_epochs():
    whole = training.draw_rounds(DRAW, KEY, 1, 10)
    first, second = training.draw_rounds(DRAW, KEY, 1, 4), training.draw_rounds(DRAW, KEY, 5, 6)
    np.testing.assert_array_equal(whole.peer, np.concatenate([first.peer, second.peer]))
    np.testing.assert_array_equal(whole.step, np.arange(1, 11))
    assert whole.peer.dtype == whole.step.dtype == jnp.int32


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_gives_its_state_up_so_that_it_is_held_once(backend):
    case = next(case for case in CASES if case.name == "elastic_averaging")  # its centre is a copy
    optimizer = case.chain(optax.sgd(0.05, momentum=0.9))
    placement = gj.place(NUM_WORKERS, backend)
    init = placement.map(lambda params: training.init_worker(params, {}, optimizer))
    state = init(placement.scatter(toy.stack(toy.init_params(), NUM_WORKERS)))
    data = placement.scatter(toy.shards(NUM_WORKERS))
    epoch = placement.map(training.train_epoch(toy.loss, optimizer, 4), AXES, donate_argnums=(0,))
    rounds = placement.share(training.draw_rounds(DRAW, KEY, 1, 5))
    jax.block_until_ready(epoch(state, data, rounds, placement.share(KEY)))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((data, rounds)))


def test_the_centre_of_elastic_averaging_can_be_donated_beside_the_parameters():
    """JAX refuses to be given one buffer twice: the centre must be a copy, also outside jit."""
    params = jnp.ones((NUM_WORKERS, 3))
    state = gj.elastic_averaging(0.1).init(params)
    add_one = jax.jit(lambda *trees: jax.tree.map(lambda leaf: leaf + 1, trees), donate_argnums=(0, 1))
    jax.block_until_ready(add_one(params, state))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((params, state)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_shard_too_small_for_the_rounds_is_an_error(backend):
    with pytest.raises(ValueError, match=r"6 updates of 4 examples need a shard of 24; got 22"):
        recorded_epochs(CASES[0], backend, epochs=1, num_updates=6)


def test_keys_differ_by_seed_purpose_and_every_index():
    keys = [
        gj.keys.derive(gj.keys.run_key(seed), purpose, *indices)
        for seed in (0, 1)
        for purpose in gj.keys.Purpose
        for indices in ((), (0,), (1,), (0, 1), (1, 0))
    ]
    assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}) == len(keys)
    assert str(jax.random.key_impl(gj.keys.run_key(0))) == "threefry2x32"


def toy_epoch(**options: Any):
    """An epoch on the toy problem, the state before it, and its other arguments."""
    optimizer = optax.chain(optax.sgd(0.05, momentum=0.9), gj.elastic_gossip(alpha=0.5))

    def loss(params: Any, model_state: Any, batch: Any, key: jax.Array) -> Any:
        noise = 0.1 * jax.random.normal(key, params.shape)
        return jnp.mean((batch @ (params + noise) - 1) ** 2), model_state

    first = training.init_worker(jnp.zeros(6), {}, optimizer)
    state = toy.stack(jax.device_get(first), NUM_WORKERS)
    inputs, _ = toy.shards(NUM_WORKERS)
    rounds = training.draw_rounds(DRAW, KEY, 1, 5)
    is_silent = (np.asarray(rounds.peer) < 0).all(axis=1)
    assert is_silent.any(), "this test is about both kinds of rounds"
    assert not is_silent.all(), "this test is about both kinds of rounds"
    return training.train_epoch(loss, optimizer, 4, **options), state, inputs, rounds


def test_runs_in_lockstep_are_what_each_is_alone():
    """Two runs with rounds of their own, under vmap inside each worker."""
    together, state, inputs, rounds = toy_epoch(lockstep="runs")
    alone, *_ = toy_epoch()
    later = training.draw_rounds(DRAW, KEY, 6, 5)
    placement = gj.place(NUM_WORKERS, "vmap")
    run = placement.map(alone, AXES)
    expected = [run(state, inputs, drawn, KEY) for drawn in (rounds, later)]

    def stack(*trees: Any, axis: int) -> Any:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves, axis), *trees)

    both = placement.map(jax.vmap(together, in_axes=(0, 0, 0, None), axis_name="runs"), AXES)
    found = both(
        stack(state, state, axis=1), jnp.stack([inputs] * 2, 1), stack(rounds, later, axis=0), KEY
    )
    for index, one in enumerate(expected):
        of_one = jax.tree.map(lambda leaf, index=index: leaf[:, index], found)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), of_one, one)


def test_an_epoch_runs_where_shard_map_checks_what_varies():
    epoch, state, inputs, rounds = toy_epoch()
    expected = gj.place(NUM_WORKERS, "vmap").map(epoch, AXES)(state, inputs, rounds, KEY)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:NUM_WORKERS]), ("workers",))
    own, shared = jax.sharding.PartitionSpec("workers"), jax.sharding.PartitionSpec()

    def one_block(state: Any, inputs: Any, rounds: Any, key: Any) -> Any:
        state, inputs = jax.tree.map(lambda leaf: leaf[0], (state, inputs))
        return jax.tree.map(lambda leaf: leaf[None], epoch(state, inputs, rounds, key))

    mapped = jax.shard_map(
        one_block, mesh=mesh, in_specs=(own, own, shared, shared), out_specs=own, check_vma=True
    )
    found = jax.jit(mapped)(state, inputs, rounds, KEY)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, expected)


@pytest.mark.parametrize("backend", ["vmap", "pmap"])
def test_an_update_compiled_for_each_route_is_the_same_update(backend):
    """Of a one-peer graph, whose one route in use is then known; and of one whose routes are not."""
    optimizer = optax.chain(optax.sgd(0.05, momentum=0.9), gj.dpsgd())
    plain = training.train_update(toy.loss, optimizer)
    by_route = training.by_route(plain)
    first = jax.device_get(training.init_worker(toy.init_params(), {}, optimizer))
    rng = np.random.default_rng(0)
    state = toy.stack(first, NUM_WORKERS)
    params = {k: v + 0.1 * rng.normal(size=v.shape).astype(v.dtype) for k, v in state.params.items()}
    state = state._replace(params=params)
    batch = jax.tree.map(lambda leaf: leaf[:, :4], toy.shards(NUM_WORKERS))
    place = gj.place(NUM_WORKERS, backend)
    one, other = (place.map(update, AXES) for update in (plain, by_route))
    one_peer = gj.in_turn(gj.graphs.exponential(NUM_WORKERS))
    absent = np.array([False, True, False, False])
    for round in (
        one_peer(KEY, 1),
        one_peer(KEY, 2),
        gj.absence.without(one_peer(KEY, 1), absent),
        gj.every(gj.graphs.ring(NUM_WORKERS))(KEY, 1),
    ):
        want, found = one(state, batch, round, KEY), other(state, batch, round, KEY)
        # The same operations, fused otherwise.
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), found, want)
        assert (found[0].params["hidden"] != params["hidden"]).any()


def test_an_update_compiled_for_each_route_has_each_route_once_and_by_itself():
    """Each in its branch, without a conditional of its own around what is sent."""
    optimizer = optax.chain(optax.sgd(0.05), gj.dpsgd())
    update = training.by_route(training.train_update(toy.loss, optimizer))
    state = toy.stack(
        jax.device_get(training.init_worker(toy.init_params(), {}, optimizer)), NUM_WORKERS
    )
    batch = jax.tree.map(lambda leaf: leaf[:, :4], toy.shards(NUM_WORKERS))
    round = gj.in_turn(gj.graphs.exponential(NUM_WORKERS))(KEY, 1)
    placed: Any = gj.place(NUM_WORKERS, "pmap").map(update, AXES)
    found, _ = computations(placed.lower(state, batch, round, KEY).compile().as_text())
    sent = [i for part in found.values() for i in collectives(part) if not i.opcode.endswith("-done")]
    assert len(sent) == 2, "one message for each of log2 4 routes: all leaves are small"
    conditionals = [i for part in found.values() for i in part if i.opcode == "conditional"]
    assert len(conditionals) == 1


@pytest.mark.parametrize(
    "draw",
    [
        gj.in_turn(gj.graphs.base(4, k=3)),
        gj.at_random(gj.graphs.ring(4), 0.5),
        gj.every(gj.graphs.star(4), 2),
    ],
    ids=["in turn", "at random", "every second"],
)
def test_an_epoch_on_a_graph_is_a_loop_of_updates(draw):
    """Rounds of which it is known that none is silent, that some are, and how many routes they have."""
    optimizer = optax.chain(optax.sgd(0.05, momentum=0.9), gj.dpsgd())

    def loss(params: Any, model_state: Any, batch: Any, key: jax.Array) -> Any:
        return jnp.mean((params - batch) ** 2), model_state

    state = jax.vmap(lambda x: training.init_worker(x, {}, optimizer))(jnp.eye(NUM_WORKERS))
    shard = jnp.ones((NUM_WORKERS, 6, NUM_WORKERS))  # all batches are alike, however it is shuffled
    drawn = training.draw_rounds(draw, KEY, 1, 6)
    place = gj.place(NUM_WORKERS, "vmap")
    found, _ = place.map(training.train_epoch(loss, optimizer, 1), AXES)(state, shard, drawn, KEY)
    update = place.map(training.train_update(loss, optimizer), AXES)
    for t in range(6):
        round = jax.tree.map(lambda leaf, t=t: leaf[t], drawn)
        state, _ = update(state, shard[:, :1], round, KEY)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), found, state)
