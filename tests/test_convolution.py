"""A convolution on CPU: JAX's gradients, computed in a way that is fast within a loop, too."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tasks.convolution import convolve
from experiments.tasks.models import PreActBlock


@pytest.mark.parametrize(
    ("size", "stride", "height"), [(3, 1, 8), (3, 2, 8), (3, 2, 7), (1, 2, 8), (1, 2, 5)]
)
def test_the_gradients_of_convolve_are_those_that_jax_derives(size, stride, height, rng):
    """Of the kernels, strides and paddings that the ResNet has, and of odd sizes."""
    x = rng.normal(size=(5, height, height + 2, 3)).astype(np.float32)
    kernel = rng.normal(size=(size, size, 3, 4)).astype(np.float32)
    padding = [(size // 2, size // 2)] * 2

    def plain(x, kernel):
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=layout
        )

    def ours(x, kernel):
        return convolve(x, kernel, (stride, stride), padding)

    out, pull_back = jax.vjp(plain, x, kernel)
    our_out, our_pull_back = jax.vjp(ours, x, kernel)
    np.testing.assert_array_equal(our_out, out)
    gradient = rng.normal(size=out.shape).astype(np.float32)
    for found, wanted in zip(our_pull_back(gradient), pull_back(gradient), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)


def test_no_convolution_within_a_loop_takes_its_axes_in_an_order_that_is_slow_on_cpu():
    """XLA computes all but b01f_01io->b01f by loops of its own there, which take 40 times as long."""
    block = PreActBlock(features=4, stride=2)
    x = jnp.zeros((2, 8, 8, 3))
    variables = block.init(jax.random.key(0), x, train=True)

    def loss(params):
        out, _ = block.apply({**variables, "params": params}, x, train=True, mutable=["batch_stats"])
        return jnp.sum(jnp.square(out))

    @jax.jit
    def train(params):
        return jax.lax.fori_loop(
            0, 3, lambda _, p: jax.tree.map(jnp.subtract, p, jax.grad(loss)(p)), params
        )

    program = train.lower(variables["params"]).compile().as_text()
    assert program is not None
    orders = re.findall(r"dim_labels=(\w+->\w+)", program)
    assert len(orders) >= 8
    assert set(orders) == {"b01f_01io->b01f"}
