"""What every protocol asks of the arguments of its `update`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gossip_jax import axis
from gossip_jax.graphs._graph import Graph
from gossip_jax.graphs.measures import mixing_matrix_of
from gossip_jax.rounds import Round


def checked_round(owner: str, params: Any, round: Any, axis_name: str) -> Round:
    """The round; raises unless `params` and `round` are there and fit each other and the worker axis.

    Raises:
      ValueError: one is missing, the round is of another W than the axis, or there is no such axis.
      TypeError: `round` is not a `Round`, or a leaf of `params` is not floating point.
    """
    if params is None:
        raise ValueError(
            f"{owner}: update needs params, as in update(grads, state, params, round=round)"
        )
    if round is None:
        raise ValueError(
            f"{owner}: update needs round, as in update(grads, state, params, round=round)"
        )
    if not isinstance(round, Round):
        raise TypeError(f"{owner}: round must be a gossip_jax.Round; got {type(round).__name__}")
    num_workers = axis.bound(axis_name).size
    if round.peer is not None and round.peer.shape != (num_workers,):
        raise ValueError(
            f"{owner}: the axis {axis_name!r} has {num_workers} workers, so round.peer must have "
            f"shape {(num_workers,)}; got {round.peer.shape}. A round is shared: in_axes=None"
        )
    if round.peer is None and (round.num_workers != num_workers or round.routes.ndim != 1):
        raise ValueError(
            f"{owner}: the axis {axis_name!r} has {num_workers} workers, and the round is of "
            f"{round.num_workers}, on {round.graph.name}, with routes of shape {round.routes.shape}. A "
            f"round is shared: in_axes=None"
        )
    check_floating(owner, params)
    return round


def check_floating(owner: str, tree: Any) -> None:
    """Raises TypeError, naming the leaf, unless every leaf is of a floating-point dtype."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            name = jax.tree_util.keystr(path) or "the only leaf"
            raise TypeError(
                f"{owner}: every parameter must be an array of floating point; {name} is "
                f"{dtype or type(leaf).__name__}. Keep other values out of the parameters, or wrap the "
                f"transformation in optax.masked"
            )


def only_around(owner: str) -> Any:
    """The `update` of a protocol that wraps the local optimizer, for those who chain it."""

    def update(*_: Any, **__: Any) -> Any:
        raise ValueError(
            f"{owner}: goes around the local optimizer, not beside it: "
            f"gossip_jax.decentralise(optimizer, {owner}(...)) makes of the two one optimizer"
        )

    return update


def require_fixed(owner: str, round: Round, may_be_silent: bool) -> None:
    """Raises ValueError unless every round is known to use all routes of its graph, as they are.

    Args:
      owner: the protocol's public name.
      round: the round.
      may_be_silent: whether rounds in which none is in use will do as well.
    """
    every = round.graph.num_routes
    allowed = {0, every} if may_be_silent or not every else {every}
    if round.peer is not None or round.away is not None or not set(round.num_routes) <= allowed:
        raise ValueError(
            f"{owner}: what workers know of each other is right only for a graph that stays the same, "
            f"with all workers there: draw the rounds by gossip_jax.every(graph)"
        )


def require_kept_sum(owner: str, round: Round) -> None:
    """Raises ValueError unless mixing over the round's graph keeps the sum over workers."""
    if round.peer is None and not keeps_sum(round.graph, round.away is not None):
        raise ValueError(
            f"{owner}: mixing must keep the sum over workers, and that over {round.graph.name} does "
            f"not{' where one is away' if round.away is not None else ''}; use an undirected graph"
        )


@functools.cache
def keeps_sum(graph: Graph, may_miss: bool) -> bool:
    """Whether the weights that workers give to each add up to 1; also where some workers are away."""
    turns = [graph.turn(number) for number in range(graph.num_turns)]
    matrices = [mixing_matrix_of(graph, graph.weights)]
    matrices += [mixing_matrix_of(turn, turn.weights) for turn in turns]
    if may_miss:
        return all(np.allclose(matrix, matrix.T) for matrix in matrices)
    return all(np.allclose(matrix.sum(axis=0), 1) for matrix in matrices)
