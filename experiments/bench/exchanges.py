"""What an exchange costs by itself, against a plain copy of as many bytes."""

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import gossip_jax as gj
from experiments.bench import limits
from experiments.bench.timing import in_turn
from gossip_jax import exchange
from gossip_jax.matchings import matchings

_TIMES = 10  # exchanges in a dispatch
_ALIGNED = 1024  # the sizes of leaves are multiples of this, as those of layers are


class Exchange(NamedTuple):
    """The cost of what workers exchange at one update."""

    workers: int
    backend: str
    leaves: int  # of the parameters, all of one size
    kind: str
    milliseconds: float  # median
    gigabytes_per_second: float  # sent by all workers; for a copy, copied
    share_of_copy: float  # the same, as a share of the copy's


def measure(
    num_workers: int, backend: Any, leaves: int, size: int, repeats: int, kinds: tuple[str, ...] = ()
) -> list[Exchange]:
    """One shape of replica: `size` parameters, float32, in so many leaves.

    Args:
      num_workers: W.
      backend: of `gossip_jax.place`.
      leaves: into how many arrays the parameters are divided.
      size: of a replica.
      repeats: of each.
      kinds: some of those there are; all where empty.
    """
    placement = gj.place(num_workers, backend)
    of_leaf = size // leaves // _ALIGNED * _ALIGNED
    theta = [jnp.ones((num_workers, of_leaf))] * leaves
    theta, updates = placement.scatter((theta, jax.tree.map(jnp.zeros_like, theta)))
    replica = 4 * leaves * of_leaf
    mix = placement.map(_mix_repeatedly, in_axes=(0, 0, None))
    mean = placement.map(_mean_repeatedly)
    copy = placement.map(lambda tree: limits.copy_repeatedly(tree, _TIMES))

    cases: dict[str, Callable[[], Any]] = {"copy": lambda: copy(theta)}
    sent = {"copy": num_workers * replica}
    for kind, contact in contacts(num_workers).items():
        if not kinds or kind in kinds:
            cases[kind] = lambda contact=contact: mix(updates, theta, contact)
            sent[kind] = int(contact.sum()) * replica
    if not kinds or "all-reduce" in kinds:
        cases["all-reduce"] = lambda: mean(updates)
        sent["all-reduce"] = 2 * (num_workers - 1) * replica  # a ring
    seconds = {
        kind: statistics.median(times) / _TIMES for kind, times in in_turn(cases, repeats).items()
    }
    rate = {kind: sent[kind] / seconds[kind] / 1e9 for kind in cases}
    return [
        Exchange(
            num_workers,
            backend,
            leaves,
            kind,
            seconds[kind] * 1e3,
            rate[kind],
            rate[kind] / rate["copy"],
        )
        for kind in cases
    ]


def contacts(num_workers: int) -> dict[str, np.ndarray]:
    """Who is in contact, bool [W, W]: nobody, one pair, all pairs of one matching, or of all."""
    workers = np.arange(num_workers)
    nobody = np.zeros((num_workers, num_workers), bool)
    pair, matching = nobody.copy(), nobody.copy()
    pair[[0, 1], [1, 0]] = True
    matching[workers, matchings(num_workers)[0]] = True
    np.fill_diagonal(matching, False)
    return {
        "silence": nobody,
        "one pair": pair,
        "one matching": matching,
        "all matchings": ~np.eye(num_workers, dtype=bool),
    }


def _mix_repeatedly(updates: Any, theta: Any, contact: Any) -> Any:
    weights = jnp.where(contact, jnp.float32(0.5), 0)
    return lax.fori_loop(
        0, _TIMES, lambda _, u: exchange.mix(u, theta, weights, contact, "workers"), updates
    )


def _mean_repeatedly(updates: Any) -> Any:
    return lax.fori_loop(
        0, _TIMES, lambda _, u: exchange.varying(exchange.mean(u, "workers"), "workers"), updates
    )
