"""Exponential graphs (Ying et al., 2021, https://arxiv.org/abs/2110.13363): hops that double."""

import functools

import numpy as np

from gossip_jax import checks
from gossip_jax.graphs._graph import Graph, of_shifts


@functools.cache
def exponential(num_workers: int) -> Graph:
    """Worker i hears from i + 2^b modulo W, for every b below log2 W: ⌈log2 W⌉ routes, one-way.

    All at once (`gj.every`) it is the *static* exponential graph, with weights 1 / (1 + ⌈log2 W⌉). One
    after the other (`gj.in_turn`) it is the *one-peer* one, with weight ½: for a power of two, the mean
    is exact after log2 W rounds; for another W it is approached geometrically.

    Args:
      num_workers: W, 1 or more.

    Raises:
      ValueError: W is out of range.

    Examples:
      >>> exponential(5).sources.tolist()
      [[1, 2, 3, 4, 0], [2, 3, 4, 0, 1], [4, 0, 1, 2, 3]]

    References:
      Ying, Yuan, Chen, Hu, Pan, Yin, *Exponential Graph is Provably Efficient for Decentralized Deep
      Training*, 2021 (https://arxiv.org/abs/2110.13363)
    """
    num_workers = checks.at_least_one("exponential", "num_workers", num_workers)
    workers = np.arange(num_workers)
    hops = [1 << bit for bit in range((num_workers - 1).bit_length())]
    return of_shifts(
        f"exponential({num_workers})", [(workers + hop) % num_workers for hop in hops], num_workers
    )
