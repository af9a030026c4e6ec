"""Hypercubes: everybody talks to those whose number differs in one bit."""

import functools

import numpy as np

from gossip_jax import checks
from gossip_jax.graphs._graph import Graph, of_shifts


@functools.cache
def hypercube(num_workers: int) -> Graph:
    """Worker i talks to i xor 2^b for every bit b: log2 W routes, all weights 1 / (1 + log2 W).

    One route after the other (`gj.in_turn`), with weight ½, the mean over all is exact after log2 W
    rounds.

    Args:
      num_workers: W, a power of two.

    Raises:
      ValueError: W is out of range or no power of two.

    Examples:
      >>> hypercube(4).sources.tolist()
      [[1, 0, 3, 2], [2, 3, 0, 1]]
    """
    num_workers = checks.at_least_one("hypercube", "num_workers", num_workers)
    num_bits = num_workers.bit_length() - 1
    if num_workers != 1 << num_bits:
        raise ValueError(f"hypercube: num_workers must be a power of two; got {num_workers}")
    workers = np.arange(num_workers)
    return of_shifts(
        f"hypercube({num_workers})", [workers ^ (1 << bit) for bit in range(num_bits)], num_workers
    )
