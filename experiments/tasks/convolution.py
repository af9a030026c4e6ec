"""Convolution whose gradients are fast on CPU, also within a loop."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax import Array, lax

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def convolve(
    x: Array, kernel: Array, strides: Sequence[int], padding: Sequence[tuple[int, int]], **_: Any
) -> Array:
    """As `jax.lax.conv_general_dilated` for `flax.linen.Conv`, without dilation and groups.

    JAX makes both gradients convolutions that take the axes of their arguments in other orders. Within
    a loop, XLA computes such ones by nested loops on CPU (its ConvCanonicalization looks at what is
    outside of all loops only): an update of ResNet-18 takes 40 times as long there. On CPU, these
    gradients transpose the arguments instead.

    Args:
      x: images [B, height, width, channels].
      kernel: [height, width, channels, features].
      strides: of height and width.
      padding: before and after each.
    """
    if jax.default_backend() == "cpu":
        return _convolve(x, kernel, tuple(strides), tuple(padding))
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=_LAYOUT)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve(x: Array, kernel: Array, strides: Any, padding: Any) -> Array:
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=_LAYOUT)


def _forward(x: Array, kernel: Array, strides: Any, padding: Any) -> tuple[Array, Any]:
    return _convolve(x, kernel, strides, padding), (x, kernel)


def _backward(strides: Any, padding: Any, kept: Any, out: Array) -> tuple[Array, Array]:
    x, kernel = kept
    # For each of height and width: sizes of the image, the kernel and the dilated output.
    sizes = [
        (x.shape[axis], kernel.shape[axis - 1], (out.shape[axis] - 1) * stride + 1, before)
        for axis, stride, (before, _) in zip((1, 2), strides, padding, strict=True)
    ]
    of_image = [
        (of_kernel - 1 - before, size - dilated + before) for size, of_kernel, dilated, before in sizes
    ]
    of_kernel = [
        (before, of_kernel - 1 - size - before + dilated) for size, of_kernel, dilated, before in sizes
    ]
    # A kernel turned by half a circle, its channels and features exchanged, leads back to the image.
    turned = lax.rev(kernel, (0, 1)).swapaxes(2, 3)
    to_image = lax.conv_general_dilated(
        out, turned, (1, 1), of_image, lhs_dilation=strides, dimension_numbers=_LAYOUT
    )
    # The images, as a batch of channels, convolved with the output's gradient: a sum over examples.
    to_kernel = lax.conv_general_dilated(
        x.transpose(3, 1, 2, 0),
        out.transpose(1, 2, 0, 3),
        (1, 1),
        of_kernel,
        rhs_dilation=strides,
        dimension_numbers=_LAYOUT,
    )
    return to_image, to_kernel.transpose(1, 2, 0, 3)


_convolve.defvjp(_forward, _backward)
