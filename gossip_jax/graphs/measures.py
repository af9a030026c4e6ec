"""What a graph does to disagreement, and what it costs: mixing matrices, gaps, rounds, messages."""

import numpy as np

from gossip_jax.graphs._graph import Graph

_MOST_PERIODS = 100_000


def mixing_matrices(graph: Graph) -> list[np.ndarray]:
    """One after the other, the mixing matrices of a period: float64 [W, W] each.

    A graph that is used all at once has one, that of its weights. A graph that is made to be used in
    turns, such as `base`, whose weights would not leave a worker anything of its own, has one for each
    turn.
    """
    if is_mixed_at_once(graph):
        return [mixing_matrix_of(graph, graph.weights)]
    return [mixing_matrix_of(turn, turn.weights) for turn in map(graph.turn, range(graph.num_turns))]


def is_mixed_at_once(graph: Graph) -> bool:
    """Whether all routes can be in use at once: a worker then keeps a positive weight for its own."""
    return bool((graph.weights.sum(axis=0) < 1).all())


def mixing_matrix_of(graph: Graph, weights: np.ndarray) -> np.ndarray:
    """The matrix that takes stacked values [W] to what they are after a round with these weights.

    Args:
      graph: the graph.
      weights: float [E, W], of each worker for what it receives on each route.
    """
    workers = np.arange(graph.num_workers)
    matrix = np.diag(1.0 - weights.sum(axis=0))
    for sources, weight in zip(graph.sources, weights, strict=True):
        np.add.at(matrix, (workers, sources), weight)
    return matrix


def spectral_gap(graph: Graph) -> float:
    """How fast a round brings workers together: 1 - ρ, with ρ what is left of disagreement at worst.

    ρ is the second largest absolute eigenvalue of the mixing matrix, 0 for an exact mean and 1 for a
    graph that is not connected. For a graph of turns (`base`) it is that of a whole period, ‖W_T … W_1
    - 11ᵀ/W‖₂.

    Args:
      graph: the graph, used all at once or, where it is made for that, in turns.

    Returns:
      The gap, in [0, 1]. A single worker has a gap of 1.

    Examples:
      >>> from gossip_jax.graphs import ring
      >>> round(spectral_gap(ring(16)), 4)
      0.0507
    """
    matrices = mixing_matrices(graph)
    away = np.eye(graph.num_workers) - 1 / graph.num_workers
    for matrix in matrices:
        away = matrix @ away
    rho = np.abs(np.linalg.eigvals(away)).max() if len(matrices) == 1 else np.linalg.norm(away, 2)
    return float(np.clip(1 - rho, 0, 1))


def rounds_to_consensus(graph: Graph, share: float = 0.01) -> int | None:
    """Rounds after which no disagreement is left but for this share, wherever it was at the start.

    Args:
      graph: the graph, used all at once or, where it is made for that, in turns.
      share: the share of ‖x - x̄‖ that may be left, in (0, 1).

    Returns:
      The number of rounds; None where it is not reached, since the graph is not connected.

    Raises:
      ValueError: `share` is out of range.
    """
    if not 0 < share < 1:
        raise ValueError(f"rounds_to_consensus: share must be in (0, 1); got {share!r}")
    matrices = mixing_matrices(graph)
    away = np.eye(graph.num_workers) - 1 / graph.num_workers
    rounds = 0
    while np.linalg.norm(away, 2) > share:
        if spectral_gap(graph) < 1e-12 or rounds >= _MOST_PERIODS:
            return None
        away = matrices[rounds % len(matrices)] @ away
        rounds += 1
    return rounds


def messages_per_worker(graph: Graph) -> float:
    """Replicas that the busiest worker sends in a round, as a mean over a period.

    Args:
      graph: the graph, used all at once or, where it is made for that, in turns.
    """
    sent = np.zeros(graph.num_workers)
    for sources, receives in zip(graph.sources, graph.receives, strict=True):
        sent += np.bincount(sources[receives], minlength=graph.num_workers)
    return float(sent.max() / len(mixing_matrices(graph)))
