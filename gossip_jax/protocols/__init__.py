"""The protocols, one file each: optax gradient transformations that run under a worker axis."""

from gossip_jax.protocols import (
    all_reduce,
    dpsgd,
    elastic_averaging,
    elastic_gossip,
    gossiping_sgd,
    no_communication,
)
from gossip_jax.spec import Spec

SPECS: dict[str, Spec] = {
    module.SPEC.name: module.SPEC
    for module in (
        no_communication,
        all_reduce,
        elastic_gossip,
        gossiping_sgd,
        elastic_averaging,
        dpsgd,
    )
}
"""What each protocol is to those who know it by name only, in the order in which they are shown."""
