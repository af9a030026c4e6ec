"""Several workers a device, a worker on several devices, and what then goes over the wire."""

import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import AXES, CASES, communicate
from hlo import collectives, computations
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gossip_jax as gj
from gossip_jax import rounds, traffic

REPEATED = ("no_communication", "gossiping_sgd_pull", "dpsgd_atc")


def values(rng: np.random.Generator, num_workers: int) -> Any:
    shapes = {"large": (200, 201), "small": (3, 4)}
    return {
        name: rng.uniform(-1, 1, (num_workers, *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def sent(program: str) -> list[Any]:
    """The collectives of a compiled program, each once."""
    everything = [i for part in computations(program)[0].values() for i in collectives(part)]
    return [i for i in everything if not i.opcode.endswith("-done")]


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.slow) if c.name in REPEATED else c for c in CASES],
    ids=lambda case: case.name,
)
def test_eight_workers_on_four_devices_do_what_they_do_on_one(case, rng):
    params, updates, center = (values(rng, 8) for _ in range(3))
    center = jax.tree.map(lambda leaf: np.broadcast_to(leaf[:1], leaf.shape), center)
    draw = gj.uniform_peers(8, 0.7)
    results = []
    for place in (gj.place(8, "vmap"), gj.place(8, devices=jax.devices()[:4])):
        update = place.map(case.one_update(), AXES)
        carry = params, case.state(center)
        for step in (1, 2):
            carry = update(carry, updates, draw(gj.keys.run_key(1), step))
        results.append(jax.device_get(carry))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), *results)


@pytest.mark.parametrize("case", [c for c in CASES if c.pairwise], ids=lambda case: case.name)
def test_two_on_one_device_send_nothing_and_two_on_different_ones_a_replica_each(case):
    """In the compiled program, of which the count of bytes is then right."""
    place = gj.place(8, devices=jax.devices()[:4])
    replicas = jnp.zeros((8, 200, 201))
    for pair, num_bytes in (((0, 1), 0), ((6, 7), 0), ((1, 2), 200 * 201 * 4), ((0, 7), 200 * 201 * 4)):
        edge = gj.graphs.from_edges(8, [pair])
        update = place.map(case.one_update(), AXES)
        arguments = (replicas, case.state(replicas)), replicas
        peer = np.full(8, -1)
        peer[pair[0]] = pair[1]
        round = gj.Round(peer, graph=edge)
        found = sent(update.lower(*arguments, round).compile().as_text() or "")
        devices = {pair[0] // 2, pair[1] // 2}
        pairs = [re.findall(r"\{(\d+),(\d+)\}", i.line.split("source_target_pairs=")[1]) for i in found]
        over = [{frozenset(map(int, ends)) for ends in of} for of in pairs]
        assert over == ([{frozenset(devices)}] if num_bytes else [])
        assert all(i.shape.startswith("f32[200,201]") for i in found)
        counted = traffic.counted_routes(round, replicas[0], num_devices=4)
        want = np.where(np.isin(np.arange(8), pair), num_bytes, 0)
        np.testing.assert_array_equal(counted.bytes_sent, want)
        assert counted.exchanges == 1


def test_expected_traffic_of_several_workers_a_device_is_the_mean_of_what_is_counted():
    draw, key = gj.in_turn(gj.graphs.exponential(8)), gj.keys.run_key(0)
    params = jnp.zeros(5)
    period = jax.vmap(draw, (None, 0))(key, jnp.arange(1, 4))
    counted = traffic.counted_routes(period, params, num_devices=4)
    expected = traffic.expected_routes(draw, params, 3, num_devices=4)
    np.testing.assert_allclose(counted.bytes_sent, expected.bytes_sent)
    # The hop of 1 leaves a device for the lower of its two only; those of 2 and 4 for both.
    np.testing.assert_array_equal(counted.bytes_sent, [60, 40] * 4)
    assert counted.bytes_sent.sum() < traffic.counted_routes(period, params).bytes_sent.sum()


def test_devices_without_a_worker_are_told_of_unless_the_devices_are_named():
    with pytest.warns(
        gj.IdleDevicesWarning, match="6 workers can be divided among 6 of 8 devices, so 2"
    ):
        gj.place(6)
    with pytest.warns(gj.IdleDevicesWarning, match="11 workers can be divided among 1 of 8 devices"):
        gj.place(11)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gj.place(8)
        gj.place(16)
        gj.place(6, devices=jax.devices())
        gj.place(6, "vmap")


@pytest.mark.parametrize("backend", ["vmap", "pmap", "shard_map"])
@pytest.mark.parametrize("devices", [8, 2])
def test_one_tree_becomes_equal_replicas_and_a_batch_equal_parts_where_the_workers_are(
    backend, devices
):
    if backend == "pmap" and devices < 4:
        pytest.skip("pmap has one worker a device")
    place = gj.place(4, backend, devices=jax.devices()[:devices])
    tree = {"w": np.arange(6.0, dtype=np.float32).reshape(2, 3), "n": jnp.int32(3)}
    stacked = place.replicate(tree)
    for name, leaf in stacked.items():
        np.testing.assert_array_equal(leaf, np.stack([tree[name]] * 4))
        assert leaf.dtype == np.asarray(tree[name]).dtype
        assert leaf.sharding.device_set == set(place.devices)
    batch = {"x": np.arange(24.0).reshape(8, 3), "y": np.arange(8)}
    parts = place.split(batch)
    np.testing.assert_array_equal(parts["x"], batch["x"].reshape(4, 2, 3))
    np.testing.assert_array_equal(parts["y"], batch["y"].reshape(4, 2))
    for wrong in (np.zeros(6), np.zeros(())):
        with pytest.raises(ValueError, match=r"must be a multiple of 4; got shape"):
            place.split(wrong)


def step_of(optimizer: Any) -> Any:
    def step(params, state, batch, round):
        def loss(params):
            return jnp.mean((jnp.tanh(batch @ params["in"]) @ params["out"]) ** 2)

        updates, state = optimizer.update(jax.grad(loss)(params), state, params, round=round)
        return optax.apply_updates(params, updates), state

    return step


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_workers_that_are_fsdp_over_two_devices_do_what_they_do_on_one_and_send_shards(kind, rng):
    """4 workers x 2 devices: each device sends its half to its own partner, and gathers no replica."""
    mesh = jax.make_mesh((4, 2), ("workers", "data"), axis_types=(kind,) * 2)
    place = gj.place(mesh=mesh)
    assert (place.num_workers, place.backend, place.workers_per_device) == (4, "shard_map", 1)
    params = {
        "in": rng.uniform(-0.2, 0.2, (64, 256)).astype(np.float32),
        "out": rng.uniform(-0.2, 0.2, (256, 192)).astype(np.float32),
    }
    batches = rng.normal(size=(3, 4, 16, 64)).astype(np.float32)
    drawn = [gj.Round([1, -1, 3, -1], 1), gj.Round([-1] * 4, 2), gj.Round([2, -1, -1, 0], 3)]
    optimizer = optax.chain(optax.sgd(0.1, momentum=0.9), gj.elastic_gossip(0.5))
    sharded = jax.device_put(params, NamedSharding(mesh, PartitionSpec("data")))
    results = []
    for where, start in ((gj.place(4, "vmap"), params), (place, sharded)):
        replicas = where.replicate(start)
        run, state = where.map(step_of(optimizer), (0, 0, 0, None)), jax.vmap(optimizer.init)(replicas)
        for batch, round in zip(batches, drawn, strict=True):
            replicas, state = run(replicas, state, where.scatter(batch), round)
        results.append(jax.device_get(replicas))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), *results)
    assert replicas["in"].sharding.spec == PartitionSpec("workers", "data")
    program = run.lower(replicas, state, place.scatter(batches[0]), drawn[0]).compile().as_text() or ""
    permuted = [i for i in sent(program) if i.opcode.startswith("collective-permute")]
    shards = {re.sub(r"\{.*", "", i.shape) for i in permuted}
    assert shards == {"f32[32,256]", "f32[128,192]"}, "half of a replica each"
    assert len(permuted) == 2 * 6, "each of two parts once for each pair"


def test_a_mesh_can_have_several_workers_a_device():
    mesh = jax.make_mesh((2, 2), ("data", "workers"), axis_types=(AxisType.Auto,) * 2)
    place = gj.place(4, mesh=mesh)
    assert place.workers_per_device == 2
    theta = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    round = gj.Round([3, -1, -1, -1])
    move = communicate(gj.elastic_gossip(0.5), place)
    found = move(place.scatter(theta), place.scatter(0 * theta), round)
    want = theta.copy()
    want[[0, 3]] = theta[[0, 3]].mean(axis=0)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-6)


def test_a_mesh_that_cannot_hold_the_workers_is_refused():
    mesh = jax.make_mesh((2,), ("workers",), axis_types=(AxisType.Auto,))
    other = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    wrong = {
        "the mesh must have an axis 'workers'": {"mesh": other},
        "there must be a multiple of 2; got 3": {"mesh": mesh, "num_workers": 3},
        "a mesh says which devices to use": {"mesh": mesh, "devices": jax.devices()},
        "or the backend 'pmap' beside it": {"mesh": mesh, "backend": "pmap"},
        "num_workers must be a whole number": {},
    }
    for message, arguments in wrong.items():
        with pytest.raises(ValueError, match=message):
            gj.place(**arguments)


def test_a_worker_knows_its_number_wherever_it_is():
    for place in (
        gj.place(8, "vmap"),
        gj.place(8, "pmap"),
        gj.place(8, devices=jax.devices()[:4]),
        gj.place(8, devices=jax.devices()[:2]),
    ):
        numbers = place.map(lambda x: gj.worker_index() + 0 * x)(jnp.zeros(8, jnp.int32))
        np.testing.assert_array_equal(numbers, np.arange(8))
        total = place.map(lambda x, place=place: jax.lax.psum(x, place.axes))(jnp.arange(8))
        np.testing.assert_array_equal(total, np.full(8, 28))
    with pytest.raises(ValueError, match="no worker axis named 'workers' here"):
        gj.worker_index()


def test_a_silent_round_of_several_workers_a_device_leaves_nothing_in_the_program():
    case = next(case for case in CASES if case.name == "elastic_gossip")
    update = case.one_update()
    place = gj.place(8, devices=jax.devices()[:4])
    replicas = jnp.zeros((8, 7))
    silent = place.map(lambda c, u, step: update(c, u, rounds.silence(8, step)), AXES)
    program = silent.lower((replicas, case.state(replicas)), replicas, jnp.int32(1)).compile().as_text()
    assert sent(program or "") == []
