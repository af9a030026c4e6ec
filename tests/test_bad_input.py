"""What is out of range is refused at the border: the message names it, and says what is allowed."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import BACKENDS, CASES, Case

import gossip_jax as gj

NAN = math.nan
LAWS = (gj.uniform_peers, gj.pairing)
NEED_ROUND = [case for case in CASES if case.needs_round]


def weights(change=None):
    matrix = np.ones((3, 3))
    if change is not None:
        where, value = change
        matrix[where] = value
    return matrix


def refused(error, *parts):
    """An exception whose message holds all the parts, in order."""
    return pytest.raises(error, match=".*".join(map(re.escape, parts)))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("value", [0, -1, 1.5, "4", None])
def test_a_number_of_workers_is_a_whole_number_of_one_or_more(law, value):
    with refused(ValueError, law.__name__, "num_workers", "whole number of 1 or more", repr(value)):
        law(value, 0.5)
    with refused(ValueError, "place", "num_workers", "whole number of 1 or more", repr(value)):
        gj.place(value, "vmap")


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("value", [-0.1, 1.1, NAN, math.inf, 2])
def test_a_probability_is_between_zero_and_one(law, value):
    with refused(ValueError, law.__name__, "p must", "[0, 1]", repr(value)):
        law(4, value)


@pytest.mark.parametrize("protocol", [gj.elastic_gossip, gj.elastic_averaging])
@pytest.mark.parametrize("value", [0, 0.0, -0.5, 1.5, NAN, math.inf])
def test_a_moving_rate_is_above_zero_and_up_to_one(protocol, value):
    with refused(ValueError, protocol.__name__, "alpha", "(0, 1]", repr(value)):
        protocol(value)


@pytest.mark.parametrize("value", [0, -2, 1.5, NAN, None])
def test_a_period_is_a_whole_number_of_one_or_more(value):
    for owner, make in (
        ("uniform_peers", lambda: gj.uniform_peers(4, 0.5, period=value)),
        ("pairing", lambda: gj.pairing(4, 0.5, period=value)),
        ("elastic_averaging", lambda: gj.elastic_averaging(0.5, period=value)),
    ):
        with refused(ValueError, owner, "period", "whole number of 1 or more", repr(value)):
            make()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (np.ones((3, 4)), "shape [W, W] = (3, 3)"),
        (np.ones(3), "shape [W, W] = (3, 3)"),
        (weights(((0, 1), -1.0)), "not negative"),
        (weights(((0, 1), NAN)), "finite"),
        (weights(((0, 1), math.inf)), "finite"),
        (weights((1, [0.0, 0.0, 0.0])), "row 1 has none"),
        (weights((1, [0.0, 5.0, 0.0])), "row 1 has none"),  # the diagonal is ignored
    ],
)
def test_weights_are_one_row_a_worker_with_somebody_to_talk_to(given, says):
    with refused(ValueError, "uniform_peers", "weights", says):
        gj.uniform_peers(3, 0.5, weights=given)


def test_a_variant_and_a_backend_are_among_those_there_are():
    with refused(ValueError, "gossiping_sgd", "variant", "'pull'", "'push'", "'shove'"):
        gj.gossiping_sgd("shove")  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "place", "backend", "pmap", "vmap", "shard_map", "'tmap'"):
        gj.place(4, "tmap")  # pyright: ignore[reportArgumentType]


def test_more_workers_than_devices_is_an_error_of_pmap_that_says_how_to_get_more():
    with refused(ValueError, "9 workers", "8 cpu device", "backend auto", "jax_num_cpu_devices", "9"):
        gj.place(9, "pmap")


@pytest.mark.parametrize(
    ("error", "peer", "step", "says"),
    [
        (TypeError, [0.5, 1.0], 1, "peer must hold integers"),
        (TypeError, [-1, -1], 1.5, "step must hold integers"),
        (ValueError, 3, 1, "[W]"),
        (ValueError, [-1, 2], 1, "peer[1] is 2"),
        (ValueError, [-2, 0], 1, "peer[0] is -2"),
        (ValueError, [-1, 1], 1, "peer[1] is 1"),  # nobody contacts itself
        (ValueError, [[-1, -1], [-1, 1]], 1, "peer[1] is 1"),
        (ValueError, [[-1, -1]], [1, 2], "leading shape of peer"),
    ],
)
def test_a_round_names_workers_that_exist_and_the_update_it_belongs_to(error, peer, step, says):
    with refused(error, "Round", says):
        gj.Round(peer, step)


SILENT = gj.Round([-1, -1, -1])


def update(case: Case, backend: Any = "vmap", theta=None, round: Any = SILENT, with_params=True):
    """Traces one update of three workers."""
    protocol = case.make()

    def one_worker(theta):
        params = theta if with_params else None
        return protocol.update(theta, protocol.init(theta), params, round=round)[0]

    return gj.place(3, backend).map(one_worker)(jnp.zeros((3, 2)) if theta is None else theta)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", NEED_ROUND, ids=lambda case: case.name)
def test_an_update_needs_params_and_a_round_of_as_many_workers_as_the_axis(case, backend):
    update(case, backend)  # nothing to object to
    with refused(ValueError, case.protocol, "update needs params"):
        update(case, backend, with_params=False)
    with refused(ValueError, case.protocol, "update needs round"):
        update(case, backend, round=None)
    with refused(TypeError, case.protocol, "gossip_jax.Round", "list"):
        update(case, backend, round=[-1, -1, -1])
    for peer in ([-1] * 4, [-1] * 2, [[-1] * 3]):
        with refused(ValueError, case.protocol, "'workers' has 3 workers", "(3,)"):
            update(case, backend, round=gj.Round(peer))


@pytest.mark.parametrize("case", NEED_ROUND, ids=lambda case: case.name)
def test_a_round_that_does_not_reach_the_protocol_is_noticed(case):
    """Called without `round=`, or inside a wrapper that drops it without a word."""
    optimizer = case.chain(optax.sgd(0.1))
    dropping = optax.MultiSteps(optimizer, 1).gradient_transformation()

    def call(transformation, theta, **extra):
        return transformation.update(theta, transformation.init(theta), theta, **extra)[0]

    for transformation, extra in ((optimizer, {}), (optax.chain(dropping), {"round": SILENT})):
        with refused(ValueError, case.protocol, "update needs round"):
            jax.vmap(lambda x, t=transformation, e=extra: call(t, x, **e), axis_name="workers")(
                jnp.zeros((3, 2))
            )


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bool_, jnp.complex64])
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name != "no_communication"], ids=lambda case: case.name
)
def test_a_leaf_that_is_not_floating_point_is_named(case, dtype):
    theta = {"kernel": jnp.zeros((3, 2)), "count": jnp.zeros((3,), dtype)}
    with refused(TypeError, case.protocol, "floating point", "['count']", jnp.dtype(dtype).name):
        update(case, theta=theta)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name != "no_communication"], ids=lambda case: case.name
)
def test_an_update_outside_the_worker_axis_says_how_to_bind_it(case):
    protocol, theta = case.make(), jnp.zeros(2)
    for run in (lambda f: f(theta), lambda f: jax.vmap(f, axis_name="other")(theta[None])):
        with refused(ValueError, "no worker axis named 'workers'", "jax.vmap", "axis_name='workers'"):
            run(lambda x: protocol.update(x, protocol.init(x), x, round=SILENT)[0])


def test_all_reduce_refuses_gradients_that_shard_map_has_summed_already():
    """Of parameters that all share, under check_vma=True; a mean of them would be W times too large."""
    mesh = jax.make_mesh((4,), ("workers",), axis_types=(jax.sharding.AxisType.Auto,))
    own, shared = jax.sharding.PartitionSpec("workers"), jax.sharding.PartitionSpec()
    optimizer = gj.all_reduce()

    def mean_gradient(theta, batch):
        grads = jax.grad(lambda theta: jnp.sum(theta * batch))(theta)
        return optimizer.update(grads, optax.EmptyState())[0]

    batch = jnp.arange(4.0)
    mapped = jax.shard_map(mean_gradient, mesh=mesh, in_specs=(shared, own), out_specs=shared)
    with pytest.raises(ValueError, match="the same on every worker already"):
        jax.jit(mapped)(jnp.float32(1), batch)
    unchecked = jax.shard_map(
        mean_gradient, mesh=mesh, in_specs=(shared, own), out_specs=shared, check_vma=False
    )
    np.testing.assert_allclose(jax.jit(unchecked)(jnp.float32(1), batch), [batch.mean()])


@pytest.mark.parametrize(
    "value", [2.0, np.float32(2), np.array(2.0), jnp.float32(2), "2", [0.5], np.ones(4) / 2]
)
def test_a_number_out_of_range_is_noticed_whatever_its_type(value):
    with refused(ValueError, "uniform_peers", "p must be", "[0, 1]"):
        gj.uniform_peers(4, value)


def test_a_round_that_does_not_fit_32_bits_is_refused():
    with refused(ValueError, "peer", "32 bits"):
        gj.Round(np.array([2**32 + 1, -1, -1]))
