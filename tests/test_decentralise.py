"""`decentralise`: each protocol in its place, with rounds that the optimizer draws itself."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import BACKENDS
from flax.training.train_state import TrainState
from test_silence import SIZE, all_exchanges, compiled, exchanges_outside_conditionals

import gossip_jax as gj
from gossip_jax.protocols._protocol import Protocol

W, UPDATES = 4, 6
KEY = gj.keys.run_key(7)
DRAW = gj.uniform_peers(W, p=0.5)


@pytest.fixture
def params(rng) -> np.ndarray:
    return rng.uniform(-1, 1, (W, 3)).astype(np.float32)


@pytest.fixture
def grads(rng) -> np.ndarray:
    return rng.uniform(-1, 1, (W, UPDATES, 3)).astype(np.float32)


def train(optimizer, params, grads, rounds=None):
    """One worker's parameters after an update for each row of grads."""

    def step(carry, row):
        params, state = carry
        grads, round = row
        told = {} if round is None else {"round": round}
        updates, state = optimizer.update(grads, state, params, **told)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, optimizer.init(params)), (grads, rounds))[0][0]


def mapped(backend, optimizer, params, grads, rounds=None):
    def one(params, grads, rounds):
        return train(optimizer, params, grads, rounds)

    return np.asarray(gj.place(W, backend).map(one, (0, 0, None))(params, grads, rounds))


def drawn():
    return jax.vmap(DRAW, in_axes=(None, 0))(KEY, jnp.arange(1, UPDATES + 1))


@pytest.mark.parametrize("name", gj.protocols.SPECS)
def test_a_protocol_of_its_spec_s_defaults_knows_its_place(name, params):
    spec = gj.protocols.SPECS[name]
    options = {option.name: option.default_for(W) for option in spec.options}
    assert spec.join(optax.sgd(0.1), **options).init(params) is not None
    options.pop("delayed", None)
    protocol = (spec.make or spec.factory)(**options)
    assert isinstance(protocol, Protocol)
    assert (protocol.place == "before") == spec.averages_gradients


@pytest.mark.parametrize("backend", BACKENDS)
def test_rounds_that_it_draws_are_those_of_the_key_and_the_step(backend, params, grads):
    local, gossip = optax.sgd(0.1, momentum=0.5), gj.elastic_gossip(0.3)
    told = mapped(backend, optax.chain(local, gossip), params, grads, drawn())
    itself = mapped(backend, gj.decentralise(local, gossip, DRAW, KEY), params, grads)
    alone = mapped(backend, local, params, grads)
    np.testing.assert_array_equal(itself, told)
    assert np.abs(itself - alone).max() > 0.01


def test_a_protocol_before_the_optimizer_is_put_before_it(params, grads):
    local = optax.rmsprop(0.1)  # not linear, so that the order shows
    want = mapped("vmap", optax.chain(gj.all_reduce(), local), params, grads)
    actual = mapped("vmap", gj.decentralise(local, gj.all_reduce(), DRAW), params, grads)
    np.testing.assert_array_equal(actual, want)


def test_a_round_that_is_given_counts(params, grads):
    optimizer = gj.decentralise(optax.sgd(0.1), gj.elastic_gossip(0.3), DRAW, KEY)
    silent = gj.Round(np.full((UPDATES, W), -1), np.arange(UPDATES) + 1)
    want = mapped("vmap", optax.sgd(0.1), params, grads)
    np.testing.assert_array_equal(mapped("vmap", optimizer, params, grads, silent), want)


def one_update(optimizer):
    def update(carry, updates):
        params, state = carry
        updates, state = optimizer.update(updates, state, params)
        return optax.apply_updates(params, updates), state

    return update


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_exchanged_outside_a_conditional_though_each_worker_counts(backend):
    """Also where the local optimizer has a counter of its own."""
    schedule = optax.linear_schedule(0.1, 0.0, 10)
    optimizer = gj.decentralise(optax.sgd(schedule), gj.elastic_gossip(0.3), DRAW)
    replicas = jnp.zeros((W, SIZE))
    carry = (replicas, jax.vmap(optimizer.init)(replicas))
    program = compiled(one_update(optimizer), backend, W, (carry, replicas), (0, 0))
    assert all_exchanges(program, backend), "the checker must see the exchanges that there are"
    assert exchanges_outside_conditionals(program, backend) == []


def test_nothing_is_exchanged_outside_a_conditional_where_a_device_holds_several_workers():
    optimizer = gj.decentralise(optax.sgd(0.1), gj.elastic_gossip(0.3), gj.uniform_peers(8, p=0.5))
    replicas = jnp.zeros((8, SIZE))
    carry = (replicas, jax.vmap(optimizer.init)(replicas))
    placed = gj.place(8, "shard_map", devices=jax.devices()[:4]).map(one_update(optimizer), (0, 0))
    options: Any = {"xla_backend_optimization_level": 3}
    program = placed.lower(carry, replicas).compile(compiler_options=options).as_text()
    for kind in ("vmap", "shard_map"):  # neither within a device nor between devices
        assert all_exchanges(program or "", kind)
        assert exchanges_outside_conditionals(program or "", kind) == []


def test_counters_that_each_worker_goes_by_itself_would_exchange_always():
    """What is avoided: rounds drawn under vmap from a counter that vmap takes for a worker's own."""
    gossip = gj.elastic_gossip(0.3)

    def update(carry, updates):
        params, count = carry
        round = DRAW(KEY, count)
        updates, _ = gossip.update(updates, optax.EmptyState(), params, round=round)
        return params + updates, count + 1

    replicas = jnp.zeros((W, SIZE))
    carry = (replicas, jnp.ones(W, jnp.int32))
    program = compiled(update, "vmap", W, (carry, replicas), (0, 0))
    assert exchanges_outside_conditionals(program, "vmap")


@pytest.mark.parametrize("check_vma", [False, True])
def test_it_draws_its_rounds_under_a_bare_shard_map(check_vma, params, grads):
    optimizer = gj.decentralise(optax.sgd(0.1), gj.elastic_gossip(0.3), DRAW, KEY)
    mesh = jax.make_mesh((W,), ("workers",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("workers")

    def one(params, state, grads):
        params, state, grads = jax.tree.map(lambda x: x[0], (params, state, grads))
        updates, state = optimizer.update(grads, state, params)
        return jax.tree.map(lambda x: x[None], (optax.apply_updates(params, updates), state))

    step = jax.shard_map(
        one, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec, check_vma=check_vma
    )
    replicas, state = jnp.asarray(params), jax.vmap(optimizer.init)(params)
    for t in range(UPDATES):
        replicas, state = jax.jit(step)(replicas, state, grads[:, t])
    np.testing.assert_allclose(replicas, mapped("vmap", optimizer, params, grads), rtol=0, atol=1e-6)


def test_flax_applies_gradients_without_knowing_of_rounds(params, grads):
    optimizer = gj.decentralise(optax.sgd(0.1), gj.elastic_gossip(0.3), DRAW, KEY)

    def one(params, grads):
        state = TrainState.create(apply_fn=None, params={"w": params}, tx=optimizer)

        def step(state, grads):
            return state.apply_gradients(grads={"w": grads}), None

        return jax.lax.scan(step, state, grads)[0].params["w"]

    actual = jax.jit(jax.vmap(one, axis_name="workers"))(params, grads)
    np.testing.assert_allclose(actual, mapped("vmap", optimizer, params, grads), rtol=0, atol=1e-6)


def test_it_runs_on_stacked_values_in_a_jit_with_shardings(params, grads):
    optimizer = gj.decentralise(optax.sgd(0.1), gj.elastic_gossip(0.3), DRAW, KEY)
    mesh = jax.make_mesh((W,), ("workers",), axis_types=(jax.sharding.AxisType.Auto,))
    whole = gj.stacked(optimizer, mesh=mesh)
    want = mapped("vmap", optimizer, params, grads[:, :3])
    params = jax.device_put(params, jax.NamedSharding(mesh, jax.P("workers")))
    state = whole.init(params)
    for t in range(3):
        updates, state = jax.jit(whole.update)(grads[:, t], state, params)
        params = params + updates
    np.testing.assert_allclose(params, want, rtol=0, atol=1e-6)


decentralise: Any = gj.decentralise  # whatever is handed over


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: decentralise(gj.elastic_gossip(0.5), optax.sgd(0.1)), ValueError, "comes first"),
        (lambda: decentralise(optax.sgd(0.1), optax.sgd(0.1)), TypeError, "an optax transformation"),
        (lambda: decentralise(optax.sgd(0.1), None), TypeError, "got None"),
        (lambda: decentralise(optax.sgd(0.1), gj.all_reduce(), key=KEY), ValueError, "no draw"),
        (lambda: decentralise(optax.sgd(0.1), gj.all_reduce(), 0.5), TypeError, "got 0.5"),
        (lambda: decentralise(optax.sgd(0.1), gj.all_reduce(), DRAW, 3), TypeError, "got 3"),
        (lambda: decentralise(0.1, gj.all_reduce()), TypeError, "got 0.1"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


KEEPS_A_COPY = {
    "schedule_free": lambda: optax.contrib.schedule_free(optax.sgd(0.1), 0.1),
    "sam": lambda: optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.05)),
}
TAKES_BACK = {
    "mechanize": lambda: optax.contrib.mechanize(optax.sgd(0.1)),
    "madgrad": lambda: optax.contrib.madgrad(0.1),
}


@pytest.mark.parametrize("name", KEEPS_A_COPY | TAKES_BACK)
def test_an_optimizer_with_parameters_of_its_own_is_refused_wherever_it_is(name):
    local = (KEEPS_A_COPY | TAKES_BACK)[name]()
    message = rf"{name}\(decentralise\(optimizer" if name in KEEPS_A_COPY else "takes back what was"
    for optimizer in (local, optax.chain(optax.clip(1.0), local)):
        with pytest.raises(ValueError, match=message):
            gj.decentralise(optimizer, gj.elastic_gossip(0.5), DRAW).init(jnp.zeros(3))
    gj.decentralise(local, gj.all_reduce(), DRAW).init(jnp.zeros(3))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_placed", [True, False])
def test_a_step_whose_optimizer_state_is_placed_is_compiled_once(backend, is_placed, caplog):
    """As in the README: parameters and optimizer state are replicated alike."""
    optimizer = gj.decentralise(optax.sgd(0.1, momentum=0.5), gj.elastic_gossip(0.3), DRAW)
    workers = gj.place(W, backend)

    def step(params, state):
        updates, state = optimizer.update(params, state, params)
        return optax.apply_updates(params, updates), state

    mapped = workers.map(step, (0, 0))
    params = workers.replicate(jnp.ones(3))
    state = jax.vmap(optimizer.init)(jnp.ones((W, 3)))
    if is_placed:
        state = workers.replicate(optimizer.init(jnp.ones(3)))
    params, state = mapped(params, state)
    with jax.log_compiles():
        mapped(params, state)
    compiled_anew = any("Compiling" in record.getMessage() for record in caplog.records)
    assert compiled_anew == (not is_placed)
