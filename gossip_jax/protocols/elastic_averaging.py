"""Elastic Averaging SGD, synchronous (Zhang, Choromanska, LeCun, 2015,
https://arxiv.org/abs/1412.6651).

every τ updates:  θ_i ← θ_i + u_i - α (θ_i - c),    c ← c + α Σ_i (θ_i - c)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gossip_jax import checks, exchange, traffic
from gossip_jax.protocols import _arguments
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.spec import PERIOD, Spec, moving_rate


class ElasticAveragingState(NamedTuple):
    """The centre variable c, which every worker holds, equal everywhere."""

    center: Any  # as the parameters: same structure, shapes and dtypes


def elastic_averaging(
    alpha: float, period: int = 1, axis_name: str = "workers"
) -> optax.GradientTransformationExtraArgs:
    """Synchronous EASGD: every worker and a centre pull each other together, every τ updates.

    Where `round.step % τ == 0`, worker i moves by `u_i - α (θ_i - c)` and the centre by
    `α Σ_i (θ_i - c)`, with the θ from before the update; else worker i moves by `u_i`. The centre
    starts as the worker's parameters, so start all replicas equal. It keeps `c + Σ_i θ_i`, but for
    the local updates. The centre overshoots where `α W > 1` and diverges where `α W ≥ 2`.

    No worker is a server: each holds the centre, and one all-reduce of the parameters moves it. A
    single worker has nobody to average with, and trains as without the protocol.

    Args:
      alpha: the moving rate α, in (0, 1].
      period: the communication period τ, 1 or more.
      axis_name: the worker axis.

    Returns:
      A transformation whose state is an `ElasticAveragingState`, to go *after* the optimizer in the
      chain. Its `update` needs `params` and `round=`, of which it uses the step.

    Raises:
      ValueError: α or τ is out of range; in `update`, `params` or `round` is missing, or the round
        is of another W than the axis.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.1), elastic_averaging(alpha=0.2, period=32))

    References:
      Zhang, Choromanska, LeCun, *Deep learning with Elastic Averaging SGD*, 2015
      (https://arxiv.org/abs/1412.6651)
    """
    alpha = checks.moving_rate("elastic_averaging", "alpha", alpha)
    period = checks.at_least_one("elastic_averaging", "period", period)

    def init(params: Any) -> ElasticAveragingState:
        # A copy: one buffer cannot be donated twice, as parameters and as centre.
        return ElasticAveragingState(jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params))

    def update(updates: Any, state: Any, params: Any = None, *, round: Any = None, **_: Any):
        round = _arguments.checked_round("elastic_averaging", params, round, axis_name)
        if round.num_workers == 1:
            return updates, state

        def pull_together(moved):
            updates, center = moved
            mean = exchange.mean(params, axis_name)
            rate = jnp.asarray(alpha, float)

            def move_worker(update, theta, c):
                return update - (rate.astype(theta.dtype) * (theta - c)).astype(update.dtype)

            def move_center(c, mean):
                return c + (round.num_workers * rate).astype(c.dtype) * (mean - c)

            return jax.tree.map(move_worker, updates, params, center), jax.tree.map(
                move_center, center, mean
            )

        due = round.step % period == 0
        updates, center = exchange.when(due, pull_together, (updates, state.center), axis_name)
        return updates, ElasticAveragingState(center)

    return Protocol(init, update, "after", axis_name)


SPEC = Spec(
    factory=elastic_averaging,
    label="EASGD",
    short="EASGD",
    summary="all workers and a centre pull each other together, every so many updates",
    color="tab:green",
    line="-.",
    place="after",
    rounds="none",
    traffic=traffic.counted_collective,
    # EASGD's authors take 0.9 / W: W workers pull at the centre at once.
    options=(moving_rate(lambda num_workers: 0.9 / num_workers, shown="0.9 / W"), PERIOD),
    waits_for_all=True,
)
