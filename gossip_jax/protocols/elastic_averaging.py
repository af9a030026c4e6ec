"""Elastic Averaging SGD, synchronous (Zhang, Choromanska, LeCun, 2015,
https://arxiv.org/abs/1412.6651).

every τ updates:  θ_i ← θ_i + u_i - α (θ_i - c),    c ← c + α Σ_i (θ_i - c)
staggered, the sum is over those whose turn it is
"""

from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gossip_jax import axis, checks, exchange, traffic
from gossip_jax.protocols import _arguments
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.rounds import Round
from gossip_jax.spec import PERIOD, Option, Spec, moving_rate
from gossip_jax.traffic import Traffic

Phase = Literal["together", "staggered"]


class ElasticAveragingState(NamedTuple):
    """The centre variable c, which every worker holds, equal everywhere."""

    center: Any  # as the parameters: same structure, shapes and dtypes


def elastic_averaging(
    alpha: float,
    period: int = 1,
    axis_name: str = "workers",
    phase: Phase = "together",
) -> optax.GradientTransformationExtraArgs:
    """Synchronous EASGD: every worker and a centre pull each other together, every τ updates.

    Where `round.step % τ == 0`, worker i moves by `u_i - α (θ_i - c)` and the centre by
    `α Σ_i (θ_i - c)`, with the θ from before the update; else worker i moves by `u_i`. The centre
    starts as the worker's parameters, so start all replicas equal. It keeps `c + Σ_i θ_i`, but for
    the local updates. The centre overshoots where `α W > 1` and diverges where `α W ≥ 2`.

    With `phase="staggered"` worker i has its turn where `(round.step + ⌊i τ / W⌋) % τ == 0`: workers
    meet the centre one by one, each every τ updates, as in asynchronous EASGD; those whose turns
    coincide (W > τ) meet the same old centre. Every turn is an all-reduce, so that W times as much is
    sent as together.

    After SGD with a Nesterov momentum this is EAMSGD, in the usual form in which the parameters stand
    where the gradient is taken: the pull acts on these, and not on the point behind the look-ahead.

    No worker is a server: each holds the centre, and one all-reduce of the parameters moves it. A
    single worker has nobody to average with, and trains as without the protocol.

    Args:
      alpha: the moving rate α, in (0, 1].
      period: the communication period τ, 1 or more.
      axis_name: the worker axis.
      phase: "together" or "staggered".

    Returns:
      A transformation whose state is an `ElasticAveragingState`, to go *after* the optimizer in the
      chain. Its `update` needs `params` and `round=`, of which it uses the step.

    Raises:
      ValueError: α or τ is out of range, or `phase` is neither of the two; in `update`, `params` or
        `round` is missing, or the round is of another W than the axis.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.1), elastic_averaging(alpha=0.2, period=32))

    References:
      Zhang, Choromanska, LeCun, *Deep learning with Elastic Averaging SGD*, 2015
      (https://arxiv.org/abs/1412.6651)
    """
    alpha = checks.moving_rate("elastic_averaging", "alpha", alpha)
    period = checks.at_least_one("elastic_averaging", "period", period)

    if phase not in get_args(Phase):
        raise ValueError(f"elastic_averaging: phase must be 'together' or 'staggered'; got {phase!r}")

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

        def pull_some(moved):
            updates, center = moved
            is_mine = is_due[axis.worker_index(axis_name)]

            def away_of(theta, c):
                pull = jnp.asarray(alpha, float).astype(theta.dtype) * (theta - c)
                return jnp.where(is_mine, pull, jnp.zeros_like(pull))

            away = jax.tree.map(away_of, params, center)
            updates = jax.tree.map(lambda u, pull: u - pull.astype(u.dtype), updates, away)
            mean = exchange.mean(away, axis_name)
            return updates, jax.tree.map(lambda c, pull: c + round.num_workers * pull, center, mean)

        if phase == "staggered" and period > 1:
            is_due = (round.step + _offsets(round.num_workers, period)) % period == 0
            moved = exchange.when(is_due.any(), pull_some, (updates, state.center), axis_name)
            return moved[0], ElasticAveragingState(moved[1])

        due = round.step % period == 0
        updates, center = exchange.when(due, pull_together, (updates, state.center), axis_name)
        return updates, ElasticAveragingState(center)

    return Protocol(init, update, "after", axis_name)


def _offsets(num_workers: int, period: int) -> np.ndarray:
    """By how many updates the turns of workers come earlier: int32 [W]."""
    return (np.arange(num_workers) * period // num_workers).astype(np.int32)


def _traffic(rounds: Round, params: Any, period: int, phase: Phase) -> Traffic:
    if phase == "together":
        return traffic.counted_collective(rounds, params, period)
    steps = np.asarray(rounds.step)[..., None] + _offsets(rounds.num_workers, period)
    is_due = (steps % period == 0).any(axis=-1)
    return traffic.counted_collective(traffic.at(rounds, is_due), params)


SPEC = Spec(
    factory=elastic_averaging,
    label="EASGD",
    short="EASGD",
    summary="all workers and a centre pull each other together, every so many updates",
    color="tab:green",
    line="-.",
    rounds="none",
    traffic=_traffic,
    # EASGD's authors take 0.9 / W: W workers pull at the centre at once.
    options=(
        moving_rate(lambda num_workers: 0.9 / num_workers, shown="0.9 / W"),
        PERIOD,
        Option(
            name="phase",
            kind=Phase,
            help="Whether workers meet the centre all at once, or one after the other.",
            default="together",
        ),
    ),
    waits_for_all=True,
)
