"""GoSGD (Blot et al., 2016, https://arxiv.org/abs/1611.09726).

every s pushes ½ w_s:   θ_r ← (w_r θ_r + Σ_s w_s θ_s) / (w_r + Σ_s w_s),   w_r ← w_r + Σ_s w_s
"""

from typing import Any

import optax

from gossip_jax.protocols import _pushing
from gossip_jax.spec import WIRE_DTYPE, Spec


def gosgd(axis_name: str = "workers", wire_dtype: Any = None) -> optax.GradientTransformationExtraArgs:
    """GoSGD: now and then a worker sends its parameters with half of its weight to another one.

    After its local update, a worker that initiates contact halves its weight and pushes its parameters
    with the other half to the peer that it picked. Who receives becomes the mean of its own parameters
    and of all it was sent, by weight, and adds up the weights. `Σ w = W` stays (the paper's weights
    are these over W), and so does `Σ w θ`, but for the local updates: the model to use is the mean by
    weight, or nearly the same, the mean.

    It is as `push_sum`, with a local update that counts in full, whatever the weight. This is the
    synchronous form: a message arrives in the round in which it is sent.

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
      >>> optimizer = optax.chain(optax.sgd(0.1), gosgd())

    References:
      Blot, Picard, Cord, Thome, *Gossip training for deep learning*, 2016
      (https://arxiv.org/abs/1611.09726)
    """
    return _pushing.pushing("gosgd", lambda updates, weight: updates, axis_name, wire_dtype)


SPEC = Spec(
    factory=gosgd,
    label="GoSGD",
    short="Go",
    summary="a worker sends its parameters with half of its weight to the peer that it picked",
    color="tab:pink",
    line="--",
    rounds="peers",
    traffic=_pushing.counted,
    options=(WIRE_DTYPE,),
    can_be_late=True,
    conserved=(_pushing.PushState,),
)
