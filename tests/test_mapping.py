"""What `Placement.map` is given and cannot use, it names, in every backend."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import BACKENDS
from flax import nnx

import gossip_jax as gj

W = 4
ROWS = np.ones((W, 2), np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda mapped: mapped(ROWS), r"got 2 entries, \(0, None\), and 1 arguments"),
        (lambda mapped: mapped(ROWS, 1.0, 2.0), "and 3 arguments"),
        (lambda mapped: mapped(ROWS, b=1.0), "got b by keyword"),
        (lambda mapped: mapped({"x": ROWS[:3]}, 1.0), r"argument 0\['x'\] has shape \(3, 2\)"),
        (lambda mapped: mapped(1.0, 1.0), r"argument 0 has shape \(\)"),
        (
            lambda mapped: mapped.lower(ROWS[:3], 1.0),
            r"leading axis of 4.*argument 0 has shape \(3, 2\)",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_named(backend, call, message):
    mapped = gj.place(W, backend).map(lambda a, b: (a, b), in_axes=(0, None))
    with pytest.raises(ValueError, match=f"^map: .*{message}"):
        call(mapped)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_that_is_no_array_is_named(backend):
    mapped = gj.place(W, backend).map(lambda a: {"loss": a, "name": "adam"})
    with pytest.raises(ValueError, match=r"result\['name'\] is 'adam', of type str"):
        mapped(ROWS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_of_the_functions_own_is_left_as_it_is(backend):
    def function(a):
        raise ValueError("its own")

    with pytest.raises(ValueError, match=r"^its own"):
        gj.place(W, backend).map(function)(ROWS)


def model():
    return nnx.Linear(2, 1, rngs=nnx.Rngs(0))


def train(linear, x):
    grads = nnx.grad(lambda linear: jnp.mean(linear(x) ** 2))(linear)
    optimizer = nnx.Optimizer(linear, optax.sgd(0.1), wrt=nnx.Param)
    optimizer.update(linear, grads)


def replicas(backend):
    graph, state = nnx.split(model())
    return nnx.merge(graph, gj.place(W, backend).replicate(state))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_that_is_an_argument_and_changes_is_refused(backend):
    def step(linear, x):
        train(linear, x)
        return jnp.mean(linear(x))

    with pytest.raises(ValueError, match=r"its argument of type Linear.*nnx\.split.*nnx\.vmap"):
        gj.place(W, backend).map(step, (0, 0))(replicas(backend), ROWS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_that_is_closed_over_and_changes_is_refused(backend):
    linear = model()

    def step(x):
        train(linear, x)
        return jnp.mean(linear(x))

    with pytest.raises(ValueError, match=r"that it closes over.*nnx\.split.*nnx\.vmap"):
        gj.place(W, backend).map(step)(ROWS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_that_is_read_returned_or_merged_is_as_good_as_any_value(backend):
    placement = gj.place(W, backend)
    read = placement.map(lambda linear, x: linear(x), (0, 0))(replicas(backend), ROWS)

    def returned(linear, x):
        train(linear, x)
        return linear

    graph, state = nnx.split(replicas(backend))

    def merged(state, x):
        linear = nnx.merge(graph, state)
        train(linear, x)
        return nnx.state(linear)

    one = placement.map(returned, (0, 0))(replicas(backend), ROWS)
    other = nnx.merge(graph, placement.map(merged, (0, 0))(state, ROWS))
    np.testing.assert_array_equal(one.kernel[...], other.kernel[...])
    assert np.abs(np.asarray(one.kernel[...]) - np.asarray(replicas(backend).kernel[...])).max() > 0.01
    assert read.shape == (W, 1)
