"""All-reduce SGD: the mean gradient over all workers, at every update."""

from typing import Any

import optax

from gossip_jax import axis, exchange, traffic
from gossip_jax.protocols import _arguments
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.spec import Spec


def all_reduce(axis_name: str = "workers") -> optax.GradientTransformationExtraArgs:
    """All-reduce SGD: replaces each worker's gradient by the mean over workers.

    `g ← (1/W) Σ_i g_i`. It goes *before* the optimizer in the chain: then the optimizer state stays
    equal on every worker, and so do replicas that start equal.

    Args:
      axis_name: the worker axis.

    Returns:
      A transformation without state. Its `update` ignores `params` and `round`.

    Raises:
      TypeError: in `update`, a gradient is not floating point.
      ValueError: in `update`, no such axis is bound.

    Examples:
      >>> optimizer = optax.chain(all_reduce(), optax.sgd(0.1))
    """

    def update(updates: Any, state: Any, params: Any = None, **_: Any):
        del params
        axis.bound(axis_name)
        _arguments.check_floating("all_reduce", updates)
        return exchange.mean(updates, axis_name), state

    return Protocol(lambda params: optax.EmptyState(), update, "before", axis_name)


SPEC = Spec(
    factory=all_reduce,
    label="All-reduce SGD",
    short="AR",
    summary="all average their gradients at every update",
    color="black",
    line="-",
    averages_gradients=True,
    rounds="none",
    traffic=traffic.counted_collective,
    waits_for_all=True,
)
