"""MATCHA (Wang et al., 2019, https://arxiv.org/abs/1905.09435): which matchings to use how often."""

import functools
from typing import NamedTuple

import numpy as np

from gossip_jax import checks
from gossip_jax.graphs._graph import Graph, read_only

_STEPS = 500  # of the ascent; more change no digit that matters


class Matcha(NamedTuple):
    """A graph, and how probable it is that each of its matchings is in use."""

    graph: Graph  # the routes of the given one, with MATCHA's weight on each
    probabilities: np.ndarray  # float64 [E]
    norm: float  # ρ: by what a round shrinks the mean square of disagreement, at worst


@functools.cache
def matcha(graph: Graph, budget: float) -> Matcha:
    """Which matchings of a graph to use how often, where only a part of them may be used on average.

    The matchings in use have a Laplacian whose mean is `Σ p_e L_e`; the probabilities make the second
    smallest eigenvalue of that as large as `Σ p_e = budget · E` allows, so that edges that hold the
    graph together are used more often. The weight of every edge, one for all, makes
    `ρ = ‖E[WᵀW] - 11ᵀ/W‖₂` as small as can be. Nothing but NumPy is needed: the first is concave and is
    climbed by its supergradient, the second is convex in one number.

    Args:
      graph: an undirected graph whose routes are matchings, such as `from_edges`, `chain` or
        `complete(W, "matchings")` make it.
      budget: the share of the edges to be used on average, in (0, 1].

    Returns:
      The graph with its weights, the probabilities for `gj.independently`, and ρ.

    Raises:
      ValueError: a route is no matching, or the budget is out of range.

    Examples:
      >>> from gossip_jax.graphs import chain
      >>> found = matcha(chain(4), budget=0.5)
      >>> [round(p, 2) for p in found.probabilities.tolist()]
      [0.5, 0.5]

    References:
      Wang, Sahu, Yang, Joshi, Kar, *MATCHA: Speeding Up Decentralized SGD via Matching Decomposition
      Sampling*, 2019 (https://arxiv.org/abs/1905.09435)
    """
    budget = checks.in_range("matcha", "budget", budget, "(0, 1]", lambda number: 0 < number <= 1)
    if graph.inverse is None or (graph.inverse != np.arange(graph.num_routes)).any():
        raise ValueError(
            f"matcha: every route must be a matching, where each sends to whom it hears from; those of "
            f"{graph.name} are not. Use graphs.from_edges with the same edges"
        )
    laplacians = np.array([_laplacian(sources) for sources in graph.sources])
    if not len(laplacians):
        return Matcha(graph, np.zeros(0), 0.0)
    probabilities = _climb(laplacians, budget * len(laplacians))
    weight, norm = _weight(laplacians, probabilities)
    weights = np.full(graph.sources.shape, weight)
    name = f"matcha({graph.name}, {budget:g})"
    weighted = Graph(name, graph.sources, weights, graph.turns, weights)
    return Matcha(weighted, read_only(probabilities), norm)


def _laplacian(sources: np.ndarray) -> np.ndarray:
    swapped = np.eye(len(sources))[sources]
    return np.eye(len(sources)) - swapped


def _climb(laplacians: np.ndarray, total: float) -> np.ndarray:
    """The probabilities that make the second smallest eigenvalue largest, of those found."""
    at = np.full(len(laplacians), total / len(laplacians))
    best, highest = at, -np.inf
    for step in range(1, _STEPS + 1):
        values, vectors = np.linalg.eigh(np.tensordot(at, laplacians, 1))
        if values[1] > highest:
            best, highest = at, values[1]
        # Where eigenvalues coincide, of all their vectors: one alone would lead away from the others.
        low = vectors[:, 1:][:, values[1:] <= values[1] + 1 / step]
        slope = np.einsum("ia,eij,ja->e", low, laplacians, low) / low.shape[1]
        at = _projected(at + slope / (np.linalg.norm(slope) + 1e-12) / np.sqrt(step), total)
    return best


def _projected(at: np.ndarray, total: float) -> np.ndarray:
    """The nearest probabilities with this sum."""
    low, high = at.min() - 1, at.max()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(at - middle, 0, 1).sum() > total else (low, middle)
    return np.clip(at - high, 0, 1)


def _weight(laplacians: np.ndarray, probabilities: np.ndarray) -> tuple[float, float]:
    """The weight of an edge with which disagreement shrinks most, and to how much."""
    mean = np.tensordot(probabilities, laplacians, 1)
    spread = np.tensordot(probabilities * (1 - probabilities), laplacians, 1)
    away = np.eye(len(mean)) - 1 / len(mean)

    def norm(weight: float) -> float:
        return float(
            np.linalg.norm(away - 2 * weight * mean + weight**2 * (mean @ mean + 2 * spread), 2)
        )

    low, high = 0.0, 1.0
    for _ in range(60):  # a convex function of one number: by thirds
        first, second = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, second) if norm(first) <= norm(second) else (first, high)
    return (low + high) / 2, norm((low + high) / 2)
