"""The complete graph: everybody can talk to everybody."""

import functools
from typing import Literal, get_args

import numpy as np

from gossip_jax import checks
from gossip_jax.graphs._graph import Graph, read_only

Routes = Literal["auto", "pairs", "matchings"]
"""What the routes of a complete graph are; auto has pairs for up to 8 workers, and else matchings."""

_MOST_WITH_PAIRS = 8


def complete(num_workers: int, routes: Routes = "auto") -> Graph:
    """Everybody can talk to everybody, in pairs.

    With a route for each *pair*, two workers talk and nobody else sends anything: right for a slow
    network. They are W (W - 1) / 2, of which each is compiled. With a route for each of W - 1
    *matchings* (W for an odd W), workers talk in pairs all at once: who has a contact has its whole
    matching send, and a program is small: right for many workers, and where links are not shared, as in
    a TPU.

    Args:
      num_workers: W, 1 or more.
      routes: "pairs" or "matchings"; "auto" has pairs for up to 8 workers.

    Returns:
      The graph; each worker gives 1 / W to everybody where all routes are in use.

    Raises:
      ValueError: an argument is out of range.

    Examples:
      >>> complete(4)
      Graph(complete(4): 4 workers, 6 routes)
      >>> complete(4, "matchings").sources.tolist()
      [[3, 2, 1, 0], [2, 3, 0, 1], [1, 0, 3, 2]]
    """
    num_workers = checks.at_least_one("complete", "num_workers", num_workers)
    return _complete(num_workers, checked_routes("complete", routes, num_workers))


def checked_routes(owner: str, routes: str, num_workers: int) -> Literal["pairs", "matchings"]:
    """What "auto" stands for; ValueError for what is none of `Routes`."""
    if routes not in get_args(Routes):
        raise ValueError(f"{owner}: routes must be one of {get_args(Routes)}; got {routes!r}")
    if routes == "auto":
        return "pairs" if num_workers <= _MOST_WITH_PAIRS else "matchings"
    return "pairs" if routes == "pairs" else "matchings"


@functools.cache
def _complete(num_workers: int, routes: Literal["pairs", "matchings"]) -> Graph:
    sources = matchings(num_workers)
    name = f"complete({num_workers})"
    if routes == "pairs":
        workers = np.arange(num_workers)
        pairs = [
            np.where(np.isin(workers, (one, other)), row, workers)
            for row in sources
            for one, other in enumerate(row)
            if one < other
        ]
        sources = np.array(pairs, np.int64).reshape(len(pairs), num_workers)
    if routes != checked_routes("complete", "auto", num_workers):
        name = f"complete({num_workers}, {routes!r})"
    return Graph(name, sources, np.full(sources.shape, 1 / num_workers))


@functools.cache
def matchings(num_workers: int) -> np.ndarray:
    """Splits all pairs of workers into as few matchings as possible (a 1-factorisation of K_W).

    The circle method: worker W - 1 stands in the middle of a circle of the others, round r pairs it
    with worker r, and the others with their mirror image. For an odd W a phantom takes the middle,
    and whoever meets it sits out.

    Args:
      num_workers: W, 1 or more.

    Returns:
      int [M, W], read-only: row m is an involution, its entry i the partner of worker i in matching m,
      or i itself where it sits out. Every pair of workers is in exactly one row. M is W - 1 for an
      even W, W for an odd one above 1, and 0 for W = 1.
    """
    if num_workers == 1:
        return read_only(np.zeros((0, 1), int))
    circle = num_workers - 1 if num_workers % 2 == 0 else num_workers
    rows, workers = np.arange(circle)[:, None], np.arange(circle)
    partner = (2 * rows - workers) % circle  # the mirror image of a worker in row r
    if circle < num_workers:
        middle = np.full((circle, 1), num_workers - 1)
        partner = np.where(partner == workers, middle, partner)
        partner = np.concatenate([partner, rows], axis=1)
    return read_only(partner)
