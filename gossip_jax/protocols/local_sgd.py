"""Local SGD (Stich, 2019, https://arxiv.org/abs/1805.09767): the mean model, every τ updates.

every τ updates:  θ_i ← (1/W) Σ_k (θ_k + u_k)
"""

from typing import Any

import optax

from gossip_jax import exchange, traffic
from gossip_jax.protocols._outer import periodic, wide_shapes
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.rounds import Round
from gossip_jax.spec import PERIOD, Spec
from gossip_jax.traffic import Traffic


def local_sgd(period: int, axis_name: str = "workers") -> optax.GradientTransformationExtraArgs:
    """Local SGD: workers train alone, and take the mean of their parameters every τ updates.

    Where `round.step % τ == 0` every worker becomes the mean over workers of the parameters after the
    local update. The state of the local optimizer, such as a momentum, stays each worker's own: with
    plain SGD and τ = 1 it is All-reduce SGD, with a momentum or Adam it is not. Updates after the last
    multiple of τ are not averaged.

    Args:
      period: the communication period τ, 1 or more.
      axis_name: the worker axis.

    Returns:
      A transformation without state, to go *after* the optimizer in the chain. Its `update` needs
      `params` and `round=`, of which it uses the step.

    Raises:
      ValueError: τ is out of range; in `update`, `params` or `round` is missing, or the round is of
        another W than the axis.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.1), local_sgd(period=16))

    References:
      Stich, *Local SGD Converges Fast and Communicates Little*, 2019
      (https://arxiv.org/abs/1805.09767)
    """
    return averaging("local_sgd", period, axis_name)


def averaging(owner: str, period: int, axis_name: str) -> Protocol:
    """The mean of the parameters, every τ updates."""

    def update(point: Any, state: Any, round: Round) -> tuple[Any, Any]:
        del round
        return exchange.mean(point, axis_name), state

    return periodic(owner, period, axis_name, lambda params: optax.EmptyState(), update)


def counted(rounds: Round, params: Any, period: int) -> Traffic:
    """What is sent where all take a mean of what is as large as the parameters, every τ updates."""
    return traffic.counted_collective(rounds, wide_shapes(params), period)


SPEC = Spec(
    factory=local_sgd,
    label="local SGD",
    short="LS",
    summary="all take the mean of their parameters every so many updates",
    color="tab:brown",
    line="-.",
    rounds="none",
    traffic=counted,
    options=(PERIOD,),
    waits_for_all=True,
)
