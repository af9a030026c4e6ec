"""Post-local SGD (Lin et al., 2020, https://arxiv.org/abs/1808.07217): All-reduce, then local SGD."""

from typing import Any

import numpy as np
import optax

from gossip_jax import checks, exchange, traffic
from gossip_jax.protocols import _arguments
from gossip_jax.protocols._outer import wide_shapes
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.protocols.local_sgd import averaging
from gossip_jax.rounds import Round
from gossip_jax.spec import PERIOD, Option, Spec
from gossip_jax.traffic import Traffic


def post_local_sgd(
    start: int, period: int, axis_name: str = "workers"
) -> optax.GradientTransformationExtraArgs:
    """Post-local SGD: All-reduce SGD for the first updates, local SGD after them.

    Up to update `start` workers take the mean of their gradients, so that replicas that start equal
    are equal at the switch; from then on they train alone, and take the mean of their parameters at the
    updates that τ divides. It goes *around* the local optimizer, which `gj.decentralise` sees to:
    gradients are averaged before it, and parameters after it.

    Args:
      start: the last update with averaged gradients, 1 or more.
      period: the communication period τ from then on, 1 or more.
      axis_name: the worker axis.

    Returns:
      A transformation for `gj.decentralise`. In a chain of one's own its `update` raises an error.

    Raises:
      ValueError: an argument is out of range; in `update`, `params` or `round` is missing, or the round
        is of another W than the axis.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> import gossip_jax as gj
      >>> optimizer = gj.decentralise(optax.sgd(0.1), post_local_sgd(start=1000, period=16))

    References:
      Lin, Stich, Patel, Jaggi, *Don't Use Large Mini-Batches, Use Local SGD*, 2020
      (https://arxiv.org/abs/1808.07217)
    """
    start = checks.at_least_one("post_local_sgd", "start", start)
    averaged = averaging("post_local_sgd", period, axis_name)

    def mean_gradient(updates: Any, state: Any, params: Any = None, *, round: Any = None, **_: Any):
        round = _arguments.checked_round("post_local_sgd", params, round, axis_name)

        def mean(gradient: Any) -> Any:
            return exchange.mean(gradient, axis_name)

        return exchange.when(round.step <= start, mean, updates, axis_name), state

    def mean_params(updates: Any, state: Any, params: Any = None, *, round: Any = None, **others: Any):
        round = _arguments.checked_round("post_local_sgd", params, round, axis_name)

        def mean(updates: Any) -> Any:
            return averaged.update(updates, state, params, round=round, **others)[0]

        return exchange.when(round.step > start, mean, updates, axis_name), state

    def empty(params: Any) -> optax.EmptyState:
        return optax.EmptyState()

    def around(local: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
        before = optax.GradientTransformationExtraArgs(empty, mean_gradient)
        after = optax.GradientTransformationExtraArgs(empty, mean_params)
        return optax.chain(before, local, after)

    return Protocol(empty, _arguments.only_around("post_local_sgd"), around, axis_name)


def _traffic(rounds: Round, params: Any, start: int, period: int) -> Traffic:
    is_early = np.asarray(rounds.step) <= start
    late = traffic.at(rounds, ~is_early)
    gradients = traffic.counted_collective(traffic.at(rounds, is_early), params)
    return gradients + traffic.counted_collective(late, wide_shapes(params), period)


SPEC = Spec(
    factory=post_local_sgd,
    label="post-local SGD",
    short="PLS",
    summary="all average their gradients at first, and every so many updates their parameters later",
    color="sienna",
    line="--",
    rounds="none",
    traffic=_traffic,
    options=(
        Option(
            name="start",
            kind=int,
            help="The last update at which gradients are averaged.",
            default=100,
        ),
        PERIOD,
    ),
    waits_for_all=True,
)
