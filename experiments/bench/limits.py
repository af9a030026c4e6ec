"""What an update must cost at least: its arithmetic and its memory traffic, at this machine's rates."""

import itertools
import statistics
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from experiments.bench.timing import in_turn

_MATRIX = 2048  # rows and columns
_COPIED, _TIMES = 64 * 2**20, 10  # bytes; copies in a dispatch


class Rates(NamedTuple):
    """Of one device, measured."""

    gigaflops: float  # 10^9 floating-point operations a second, of a float32 matrix product
    gigabytes_per_second: float  # read and written by a copy


class Limit(NamedTuple):
    """What an update takes at least."""

    arithmetic_milliseconds: float
    memory_milliseconds: float


def rates(repeats: int) -> Rates:
    """Measures the default device."""
    matrix = jnp.ones((_MATRIX, _MATRIX))
    memory = jnp.ones(_COPIED // 4)
    product, copies = jax.jit(jnp.matmul), jax.jit(copy_repeatedly, static_argnums=1)
    seconds = in_turn(
        {"product": lambda: product(matrix, matrix), "copies": lambda: copies(memory, _TIMES)}, repeats
    )
    usual = {name: statistics.median(times) for name, times in seconds.items()}
    return Rates(2 * _MATRIX**3 / usual["product"] / 1e9, 2 * _COPIED * _TIMES / usual["copies"] / 1e9)


def copy_repeatedly(tree: Any, times: int) -> Any:
    """A copy of every leaf, made so many times over: an array that is new to the process, as the first
    one is, would be slower to write than those of a training loop.
    """

    def copy(t: Array, _: Any) -> Any:
        # What is added keeps XLA from leaving out all but one.
        return jax.tree.map(lambda leaf: leaf + t.astype(leaf.dtype), tree)

    return lax.fori_loop(0, times, copy, tree)


def limit(rates: Rates, num_workers: int, batch: int, sizes: tuple[int, ...]) -> Limit:
    """An update of a perceptron with SGD and momentum.

    Every weight takes part in 2 operations for each example in the forward pass, 2 for the weight's
    gradient and, but in the first layer, 2 for the input's gradient. It is read in both passes (the
    first layer's in one), its gradient is written and read, and so are it and its momentum.

    Args:
      rates: of the machine.
      num_workers: that share the device.
      batch: examples of one worker.
      sizes: of the layers, the input first.
    """
    layers = [fan_in * fan_out for fan_in, fan_out in itertools.pairwise(sizes)]
    operations = num_workers * batch * 2 * (3 * sum(layers) - layers[0])
    accessed = num_workers * 4 * (8 * sum(layers) - layers[0])
    return Limit(operations / rates.gigaflops / 1e6, accessed / rates.gigabytes_per_second / 1e6)
