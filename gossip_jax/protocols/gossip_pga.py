"""Gossip-PGA (Chen et al., 2021, https://arxiv.org/abs/2105.09080): mixing, and a mean now and then.

θ_i ← Σ_k w_ik (θ_k + u_k),    every τ updates (1/W) Σ_k instead
"""

from typing import Any

import optax

from gossip_jax import traffic
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.protocols.dpsgd import dpsgd
from gossip_jax.protocols.local_sgd import averaging, counted
from gossip_jax.rounds import Round
from gossip_jax.spec import WIRE_DTYPE, Option, Spec
from gossip_jax.traffic import Traffic


def gossip_pga(
    period: int, axis_name: str = "workers", wire_dtype: Any = None
) -> optax.GradientTransformationExtraArgs:
    """Gossip-PGA: `dpsgd("atc")`, and every τ updates the exact mean over all workers.

    The mean of what has been mixed is the mean of what has not, on a doubly stochastic graph: so the
    one follows the other.

    Args:
      period: the period τ of the exact mean, 1 or more.
      axis_name: the worker axis.
      wire_dtype: the type of floating point that parameters are mixed in, "bfloat16" or "float16";
        their own type by default. The exact mean is taken in their own.

    Returns:
      A transformation without values in its state, to go *after* the optimizer in the chain. Its
      `update` needs `params` and `round=`.

    Raises:
      ValueError: τ is out of range, or `wire_dtype` is no type that replicas are sent in; in `update`,
        `params` or `round` is missing, or the round is of another W than the axis.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.1), gossip_pga(period=16))

    References:
      Chen, Yuan, Zhang, Pan, Xu, Yin, *Accelerating Gossip SGD with Periodic Global Averaging*, 2021
      (https://arxiv.org/abs/2105.09080)
    """
    mixed = dpsgd("atc", axis_name, wire_dtype)
    both = optax.chain(mixed, averaging("gossip_pga", period, axis_name))
    return Protocol(*both, "after", axis_name)


def _traffic(rounds: Round, params: Any, global_period: int, wire_dtype: Any) -> Traffic:
    mixed = traffic.counted_routes(rounds, params, wire_dtype)
    return mixed + counted(rounds, params, global_period)


SPEC = Spec(
    factory=gossip_pga,
    label="Gossip-PGA",
    short="PGA",
    summary="neighbours mix, and every so many updates all take the mean",
    color="mediumpurple",
    line="-.",
    rounds="graph",
    traffic=_traffic,
    options=(
        Option(
            name="global_period",
            kind=int,
            help="Every so many updates all take the mean.",
            default=16,
        ),
        WIRE_DTYPE,
    ),
    make=lambda global_period, wire_dtype: gossip_pga(global_period, wire_dtype=wire_dtype),
    waits_for_all=True,
)
