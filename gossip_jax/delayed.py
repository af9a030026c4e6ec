"""Any protocol in two halves, with one update between them (Assran et al., 2019, overlap SGP)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from gossip_jax.protocols import _arguments
from gossip_jax.protocols._protocol import Protocol


class InFlight(NamedTuple):
    """What is on its way to a worker, and the state of the protocol."""

    total: Any  # as the parameters: the sum of what was sent to it, by weight
    weight: Array  # float scalar: the sum of the weights
    inner: Any


def delayed(protocol: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """The protocol with one update between sending and receiving.

    What is sent at update t are the parameters from before its local update, and it is taken at update
    t + 1: nothing waits for it, and it travels while the next gradient is computed. What is in flight
    is part of the state, and so of a checkpoint.

    For `push_sum` and `gosgd` this is overlap SGP: a sender keeps its share at once, and what it gave
    away is on its way, with its weight; `Σ w` and `Σ w z` stay, with what is in flight. For
    `elastic_gossip`, `gossiping_sgd` and `dpsgd("awc")` a worker moves towards what others were one
    update ago: `u_i + Σ_k w_ik (θ'_k - θ_i)`.

    Args:
      protocol: one of these.

    Returns:
      A transformation to go where the protocol goes.

    Raises:
      ValueError: the protocol cannot be late.

    Examples:
      >>> import gossip_jax as gj
      >>> optimizer = optax.chain(optax.sgd(0.1), delayed(gj.push_sum()))

    References:
      Assran, Loizou, Ballas, Rabbat, *Stochastic Gradient Push for Distributed Deep Learning*, 2019,
      algorithm 2 (https://arxiv.org/abs/1811.10792)
    """
    late = getattr(protocol, "late", None)
    if not isinstance(protocol, Protocol) or late is None:
        raise ValueError(
            "delayed: protocol must be push_sum, gosgd, elastic_gossip, gossiping_sgd or dpsgd('awc'), "
            "which can have what they receive arrive late; this is none of them"
        )

    def init(params: Any) -> InFlight:
        nothing = jax.tree.map(jnp.zeros_like, params)
        return InFlight(nothing, jnp.zeros((), float), protocol.init(params))

    def update(updates: Any, state: InFlight, params: Any = None, *, round: Any = None, **_: Any):
        round = _arguments.checked_round("delayed", params, round, protocol.axis_name)
        total, weight = late.send(params, state.inner, round)
        updates, inner = late.take(updates, state.inner, params, round, state.total, state.weight)
        return updates, InFlight(total, weight.astype(float), inner)

    return Protocol(init, update, "after", protocol.axis_name)
