"""Stochastic gradient push (Assran et al., 2019, https://arxiv.org/abs/1811.10792).

x_i ← Σ_k p_ik (w_k z_k + u_k),    w_i ← Σ_k p_ik w_k,    z_i = x_i / w_i
"""

from typing import Any

import jax
import optax
from jax import Array

from gossip_jax.protocols import _pushing
from gossip_jax.spec import WIRE_DTYPE, Spec


def push_sum(
    axis_name: str = "workers", wire_dtype: Any = None
) -> optax.GradientTransformationExtraArgs:
    """Stochastic gradient push: workers send shares of what they hold, and need no answer.

    A worker that sends to d others keeps the share 1 / (1 + d) of its sum `x = w z` and of its weight
    w, and sends as much to each of them. What it trains, and what the parameters are, is `z = x / w`.
    So senders and receivers need not be as many: it goes over directed graphs, to several at once, and
    with workers that are away, and still all come to the mean. `Σ w = W` and, but for the local
    updates, `Σ w z` stay. The local update u is added to x before it is sent, and so moves z by u / w.

    In a round of peers, a worker pushes to the one that it picked. Where every worker sends to as many
    as it hears from, and as many as those do (rings, exponential graphs, matchings with nobody away),
    all weights stay 1, and `dpsgd("atc")` on a graph of equal weights does the same.

    Args:
      axis_name: the worker axis.
      wire_dtype: the type of floating point that parameters are sent in, "bfloat16" or "float16"; their
        own type by default. Weights are sent as they are.

    Returns:
      A transformation whose state holds the weight, to go *after* the optimizer in the chain. Its
      `update` needs `params` and `round=`.

    Raises:
      ValueError: `wire_dtype` is no type that replicas are sent in; in `update`, `params` or `round` is
        missing, or the round is of another W than the axis.
      TypeError: in `update`, a parameter is not floating point.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.1, momentum=0.9), push_sum())

    References:
      Assran, Loizou, Ballas, Rabbat, *Stochastic Gradient Push for Distributed Deep Learning*, 2019
      (https://arxiv.org/abs/1811.10792)
    """

    def scale(updates: Any, weight: Array) -> Any:
        return jax.tree.map(lambda u: u / weight.astype(u.dtype), updates)

    return _pushing.pushing("push_sum", scale, axis_name, wire_dtype)


SPEC = Spec(
    factory=push_sum,
    label="SGP",
    short="SGP",
    summary="workers push shares of what they hold, with their weights, and need no answer",
    color="tab:olive",
    line="-",
    rounds="graph",
    traffic=_pushing.counted,
    options=(WIRE_DTYPE,),
    can_be_late=True,
    conserved=(_pushing.PushState,),
)
