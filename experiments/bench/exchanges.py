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
from gossip_jax.graphs.complete import matchings

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
    placement = gj.place(num_workers, backend, devices=jax.devices()[:num_workers])
    of_leaf = size // leaves // _ALIGNED * _ALIGNED
    theta = [jnp.ones((num_workers, of_leaf))] * leaves
    theta, updates = placement.scatter((theta, jax.tree.map(jnp.zeros_like, theta)))
    replica = 4 * leaves * of_leaf
    graph = gj.graphs.complete(num_workers)
    mix = placement.map(_mix_repeatedly, in_axes=(0, 0, None))
    mean = placement.map(_mean_repeatedly)
    copy = placement.map(lambda tree: limits.copy_repeatedly(tree, _TIMES))

    cases: dict[str, Callable[[], Any]] = {"copy": lambda: copy(theta)}
    sent = {"copy": num_workers * replica}
    for kind, routes in routes_of(graph).items():
        if not kinds or kind in kinds:
            round = gj.Round.of_routes(graph, routes)
            cases[kind] = lambda round=round: mix(updates, theta, round)
            sent[kind] = int(graph.receives[routes].sum()) * replica
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


def routes_of(graph: gj.Graph) -> dict[str, np.ndarray]:
    """The routes in use, bool [E], where nobody, one pair, a matching or all exchange."""
    first = matchings(graph.num_workers)[0]
    is_of_first = ((graph.sources == first) | ~graph.receives).all(axis=1)
    return {
        "silence": np.zeros(graph.num_routes, bool),
        "one pair": (graph.sources[:, 0] == 1),
        "one matching": is_of_first,
        "all matchings": np.ones(graph.num_routes, bool),
    }


def _mix_repeatedly(updates: Any, theta: Any, round: gj.Round) -> Any:
    weights = np.full(round.graph.sources.shape, 0.5)
    return lax.fori_loop(
        0, _TIMES, lambda _, u: exchange.mix(u, theta, round, weights, "workers"), updates
    )


def _mean_repeatedly(updates: Any) -> Any:
    return lax.fori_loop(
        0, _TIMES, lambda _, u: exchange.varying(exchange.mean(u, "workers"), "workers"), updates
    )
