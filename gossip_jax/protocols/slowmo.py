"""SlowMo (Wang et al., 2020, https://arxiv.org/abs/1910.00643): a slow momentum over mean models.

every τ updates:  v ← β v + (φ - θ̄) / γ,    φ ← φ - α γ v,    θ_i ← φ
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from gossip_jax import checks
from gossip_jax.protocols import local_sgd
from gossip_jax.protocols.diloco import outer_mean, period_option
from gossip_jax.spec import Option, Spec


def slowmo(
    period: int,
    beta: float = 0.5,
    alpha: float = 1.0,
    learning_rate: optax.ScalarOrSchedule | None = None,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """SlowMo: every τ updates all take the mean of their parameters, and a slow momentum carries it on.

    With θ̄ the mean of the parameters after the local update, and φ where the last period ended:
    `v ← β v + (φ - θ̄)`, `φ ← φ - α v`, and all workers go on from φ. This is `diloco` with the outer
    optimizer `optax.sgd(α, momentum=β)`; with α = 1 and β = 0 it is `local_sgd`. The local optimizer
    keeps its state, which is one of the paper's three ways.

    The paper has v in units of the gradient, divided by the local learning rate γ, and multiplied by it
    again; that is the same as long as γ stays, and what `learning_rate` is for.

    It can follow another protocol in the chain, such as `dpsgd`, which is then the paper's base. For a
    single worker it is not the local optimizer alone.

    Args:
      period: the period τ, 1 or more.
      beta: the slow momentum β, in [0, 1).
      alpha: the slow learning rate α, above 0.
      learning_rate: γ, a number or an optax schedule by the number of the update; 1 where None. While
        it is 0 nothing is added to v.
      axis_name: the worker axis.

    Returns:
      A transformation whose state is that of `diloco`, to go *after* the optimizer in the chain. Its
      `update` needs `params` and `round=`, of which it uses the step. Start all replicas equal.

    Raises:
      ValueError: an argument is out of range; in `update`, `params` or `round` is missing, or the round
        is of another W than the axis.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.1), slowmo(period=48))

    References:
      Wang, Tantia, Ballas, Rabbat, *SlowMo: Improving Communication-Efficient Distributed SGD with
      Slow Momentum*, 2020 (https://arxiv.org/abs/1910.00643)
    """
    beta = checks.in_range("slowmo", "beta", beta, "[0, 1)", lambda number: 0 <= number < 1)
    alpha = checks.in_range("slowmo", "alpha", alpha, "(0, inf)", lambda number: number > 0)
    period = checks.at_least_one("slowmo", "period", period)
    rate = 1.0 if learning_rate is None else learning_rate
    return outer_mean("slowmo", _slow_momentum(beta, alpha, rate, period), period, axis_name)


class _SlowState(NamedTuple):
    momentum: Any  # v
    periods: Any  # int32 scalar: those that have ended


def _slow_momentum(
    beta: float, alpha: float, rate: optax.ScalarOrSchedule, period: int
) -> optax.GradientTransformation:
    def init(params: Any) -> _SlowState:
        return _SlowState(jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, _SlowState]:
        del params
        # Of the update that ends the period, the first of which has the number 0.
        gamma = rate((state.periods + 1) * period - 1) if callable(rate) else rate
        gamma = jnp.asarray(gamma, float)
        once = jnp.where(gamma == 0, 0, 1 / jnp.where(gamma == 0, 1, gamma))

        def slower(v: Array, move: Array) -> Array:
            return beta * v + once.astype(move.dtype) * move

        momentum = jax.tree.map(slower, state.momentum, updates)
        updates = jax.tree.map(lambda v: -alpha * gamma.astype(v.dtype) * v, momentum)
        return updates, _SlowState(momentum, optax.safe_increment(state.periods))

    return optax.GradientTransformation(init, update)


SPEC = Spec(
    factory=slowmo,
    label="SlowMo",
    short="SlowMo",
    summary="a slow momentum carries on the mean of all workers, every so many updates",
    color="darkcyan",
    line="--",
    rounds="none",
    traffic=lambda rounds, params, period, **_: local_sgd.counted(rounds, params, period),
    options=(
        Option(
            name="slow_momentum",
            kind=float,
            help="The slow momentum β.",
            default=0.5,
        ),
        Option(
            name="slow_learning_rate",
            kind=float,
            help="The slow learning rate α.",
            default=1.0,
        ),
        period_option(48),
    ),
    make=lambda slow_momentum, slow_learning_rate, period: slowmo(
        period, slow_momentum, slow_learning_rate
    ),
    waits_for_all=True,
)
