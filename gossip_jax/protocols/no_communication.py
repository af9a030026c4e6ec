"""No communication: every worker trains alone, the lower end of every comparison."""

import optax

from gossip_jax import traffic
from gossip_jax.protocols._protocol import Protocol
from gossip_jax.spec import Spec


def no_communication() -> optax.GradientTransformationExtraArgs:
    """Every worker trains alone: `θ_i ← θ_i + u_i`.

    Returns:
      A transformation that changes nothing. Its `update` ignores `round`.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.1), no_communication())
    """
    return Protocol(*optax.with_extra_args_support(optax.identity()))


SPEC = Spec(
    factory=no_communication,
    label="no communication",
    short="none",
    summary="every worker trains by itself",
    color="crimson",
    line=":",
    rounds="none",
    traffic=lambda rounds, params: traffic.silence(rounds.num_workers),
)
