"""Graphs of any undirected edges, with Metropolis-Hastings weights; chains and stars are such."""

import functools
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from gossip_jax import checks
from gossip_jax.graphs._graph import Graph


def from_edges(num_workers: int, edges: Any) -> Graph:
    """A graph of undirected edges, whose routes are matchings: at most one more than a worker has
    edges.

    Two neighbours i and k give each other the weight 1 / (1 + max(d_i, d_k)), with d the number of
    edges (Metropolis-Hastings). These weights are symmetric, and so keep the sum over workers.

    Args:
      num_workers: W, 1 or more.
      edges: pairs of workers, in either order; or a graph of networkx with the nodes 0 to W - 1.

    Raises:
      ValueError: W is out of range, or an edge is not between two of the workers.

    Examples:
      >>> from_edges(4, [(0, 1), (1, 2), (1, 3)]).weights.max(axis=0).tolist()
      [0.25, 0.25, 0.25, 0.25]
    """
    num_workers = checks.at_least_one("from_edges", "num_workers", num_workers)
    found = _checked_edges(num_workers, edges.edges if hasattr(edges, "edges") else edges)
    return _of_edges(f"from_edges({num_workers}, {len(found)} edges)", num_workers, found)


@functools.cache
def chain(num_workers: int) -> Graph:
    """Workers in a row, 0 to W - 1, each of which talks to the one before it and the one after it.

    Args:
      num_workers: W, 1 or more.

    Raises:
      ValueError: W is out of range.

    Examples:
      >>> chain(4).sources.tolist()
      [[1, 0, 3, 2], [0, 2, 1, 3]]
    """
    num_workers = checks.at_least_one("chain", "num_workers", num_workers)
    edges = [(i, i + 1) for i in (*range(0, num_workers - 1, 2), *range(1, num_workers - 1, 2))]
    return _of_edges(f"chain({num_workers})", num_workers, edges)


@functools.cache
def star(num_workers: int) -> Graph:
    """Everybody talks to worker 0 only, with weights 1 / W: W - 1 routes, since 0 hears one at a time.

    Args:
      num_workers: W, 1 or more.

    Raises:
      ValueError: W is out of range.

    Examples:
      >>> star(3).sources.tolist()
      [[1, 0, 2], [2, 1, 0]]
    """
    num_workers = checks.at_least_one("star", "num_workers", num_workers)
    return _of_edges(f"star({num_workers})", num_workers, [(0, i) for i in range(1, num_workers)])


def _of_edges(name: str, num_workers: int, edges: list[tuple[int, int]]) -> Graph:
    """The graph of edges that are each there once."""
    degree = np.bincount(np.array(edges, np.int64).ravel(), minlength=num_workers)
    colours = _edge_colouring(num_workers, edges)
    num_routes = max(colours, default=-1) + 1
    sources = np.tile(np.arange(num_workers), (num_routes, 1))
    weights = np.zeros(sources.shape)
    for (one, other), colour in zip(edges, colours, strict=True):
        sources[colour, [one, other]] = other, one
        weights[colour, [one, other]] = 1 / (1 + max(degree[one], degree[other]))
    return Graph(name, sources, weights)


def _edge_colouring(num_workers: int, edges: list[tuple[int, int]]) -> list[int]:
    """A colour for each edge, such that those of one worker differ: at most one more than its degree.

    By Misra and Gries (1992), after a try with the first colour that is free at both ends.
    """
    at: list[dict[int, int]] = [{} for _ in range(num_workers)]  # of each worker, colour -> neighbour
    degree = np.bincount(np.array(edges, np.int64).ravel(), minlength=num_workers)
    palette = range(int(degree.max(initial=0)) + 1)

    def free(worker: int) -> int:
        return next(colour for colour in palette if colour not in at[worker])

    def colour_of(one: int, other: int) -> int | None:
        return next((colour for colour, worker in at[one].items() if worker == other), None)

    def paint(one: int, other: int, colour: int) -> None:
        at[one][colour], at[other][colour] = other, one

    def unpaint(one: int, other: int) -> None:
        colour = colour_of(one, other)
        if colour is not None:
            del at[one][colour], at[other][colour]

    def flip_path(start: int, first: int, second: int) -> None:
        """Swaps two colours along the path from a worker at which only `second` may be in use."""
        path, worker, colour = [], start, second
        while colour in at[worker]:
            path.append((worker, at[worker][colour], colour))
            worker, colour = at[worker][colour], first + second - colour
        for one, other, _ in path:
            unpaint(one, other)
        for one, other, colour in path:
            paint(one, other, first + second - colour)

    for one, other in edges:
        both_free = next((c for c in palette[:-1] if c not in at[one] and c not in at[other]), None)
        if both_free is not None:
            paint(one, other, both_free)
            continue
        fan = [other]
        while True:
            following = (
                worker
                for colour, worker in at[one].items()
                if worker not in fan and colour not in at[fan[-1]]
            )
            worker = next(following, None)
            if worker is None:
                break
            fan.append(worker)
        mine, last = free(one), free(fan[-1])
        if mine != last:
            flip_path(one, mine, last)
        # After the flip: the first end of what is still a fan at which `last` is free.
        end = next(
            end
            for end in range(len(fan))
            if last not in at[fan[end]]
            and all(colour_of(one, fan[i + 1]) not in (None, *at[fan[i]]) for i in range(end))
        )
        for i in range(end):  # rotates the fan
            colour = colour_of(one, fan[i + 1])
            assert colour is not None
            unpaint(one, fan[i + 1])
            paint(one, fan[i], colour)
        paint(one, fan[end], last)
    found = [colour_of(one, other) for one, other in edges]
    assert None not in found
    return [colour for colour in found if colour is not None]


def _checked_edges(num_workers: int, edges: Iterable[Any]) -> list[tuple[int, int]]:
    """The edges, each once, the lower worker first."""
    found = {}
    for edge in edges:
        try:
            one, other = sorted(operator.index(end) for end in edge)
        except (TypeError, ValueError):
            one = other = -1
        if not 0 <= one < other < num_workers:
            raise ValueError(
                f"from_edges: an edge is a pair of two different workers, 0 to {num_workers - 1}; "
                f"got {edge!r}"
            )
        found[one, other] = None
    return list(found)
