"""The protocols, one file each: optax gradient transformations that run under a worker axis."""

from gossip_jax.protocols import (
    all_reduce,
    choco,
    diloco,
    dpsgd,
    elastic_averaging,
    elastic_gossip,
    exact_diffusion,
    gosgd,
    gossip_pga,
    gossiping_sgd,
    gradient_tracking,
    local_sgd,
    no_communication,
    noloco,
    post_local_sgd,
    push_sum,
    quasi_global_momentum,
    slowmo,
    sparse_loco,
    streaming_diloco,
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
        push_sum,
        gosgd,
        local_sgd,
        post_local_sgd,
        gossip_pga,
        slowmo,
        diloco,
        streaming_diloco,
        noloco,
        sparse_loco,
        quasi_global_momentum,
        gradient_tracking,
        exact_diffusion,
        choco,
    )
}
"""What each protocol is to those who know it by name only, in the order in which they are shown."""
