"""What every protocol asks of the arguments of its `update`."""

from typing import Any

import jax
import jax.numpy as jnp

from gossip_jax import axis
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
