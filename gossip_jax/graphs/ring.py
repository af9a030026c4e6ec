"""Rings and tori: everybody talks to its neighbours on a grid that closes on itself."""

import functools

import numpy as np

from gossip_jax import checks
from gossip_jax.graphs._graph import Graph, of_shifts


@functools.cache
def ring(num_workers: int) -> Graph:
    """Worker i hears from i - 1 and i + 1, modulo W: a route for each direction.

    All weights are 1/3, its own too; with two workers, who have one neighbour each, ½. A single worker
    has no route.

    Args:
      num_workers: W, 1 or more.

    Raises:
      ValueError: W is out of range.

    Examples:
      >>> ring(4).sources.tolist()
      [[3, 0, 1, 2], [1, 2, 3, 0]]
    """
    num_workers = checks.at_least_one("ring", "num_workers", num_workers)
    return of_shifts(f"ring({num_workers})", _shifts(np.arange(num_workers)), num_workers)


@functools.cache
def torus(rows: int, columns: int) -> Graph:
    """A grid of workers that closes on itself in both directions; worker i is in row i // columns.

    Four routes, and all weights 1/5. A side of two has one neighbour in that direction, and a side of
    one
    none: the weights are 1 / (1 + neighbours).

    Args:
      rows: workers in a column, 1 or more.
      columns: workers in a row, 1 or more.

    Raises:
      ValueError: a side is out of range.

    Examples:
      >>> torus(3, 4)
      Graph(torus(3, 4): 12 workers, 4 routes)
    """
    rows = checks.at_least_one("torus", "rows", rows)
    columns = checks.at_least_one("torus", "columns", columns)
    grid = np.arange(rows * columns).reshape(rows, columns)
    shifts = [shift.ravel() for axis in (0, 1) for shift in _shifts(grid, axis)]
    return of_shifts(f"torus({rows}, {columns})", shifts, rows * columns)


def _shifts(grid: np.ndarray, axis: int = 0) -> list[np.ndarray]:
    """Everybody's neighbours along an axis, each shift once."""
    size = grid.shape[axis]
    return [np.roll(grid, shift, axis) for shift in {1: (), 2: (1,)}.get(size, (1, -1))]
