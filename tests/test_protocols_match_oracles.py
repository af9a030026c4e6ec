"""Every protocol after the thesis is what its equations say, update after update, in every backend.

And what it keeps: one compiled program is run on several inputs.
"""

from typing import Any

import numpy as np
import pytest
from decentral_cases import (
    CASES,
    UPDATES,
    as_matrices,
    drawn,
    joined,
    local_optimizer,
    of_type,
    runner,
    values,
)

from gossip_jax.delayed import InFlight
from gossip_jax.protocols._pushing import PushState

IN_SHORT = [("vmap", 1), ("vmap", 5), ("shard_map", 3)]
IN_LONG = [("vmap", 2), ("vmap", 8), ("pmap", 3)]

# Each has its own turn, its own weight for an update, or what others were an update ago.
OF_THEIR_OWN = (
    "elastic_averaging, staggered",
    "push_sum, peers",
    "push_sum, star",
    "push_sum, delayed",
    "dpsgd, delayed",
)
CONSTANT_SUM = (
    "push_sum, delayed",
    "push_sum, star",
    "push_sum, peers",
    "gosgd",
    "gossip_pga",
    "choco, top_k",
    "choco, sign",
    "gradient_tracking",
    "exact_diffusion",
    "exact_diffusion, D²",
    "dpsgd, MATCHA",
)


@pytest.mark.parametrize(
    ("backend", "num_workers"),
    [*IN_SHORT, *(pytest.param(*both, marks=pytest.mark.slow) for both in IN_LONG)],
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_updates_match_the_oracle_and_keep_what_they_should(case, backend, num_workers, rng):
    start, gradients = values(rng, num_workers)
    rounds = drawn(case.draw(num_workers))
    local = local_optimizer(nesterov=case.nesterov)
    run = runner(case.make(), rounds, num_workers, backend, local)
    found, _ = run(start, gradients)
    wanted = case.oracle(start, gradients, as_matrices(rounds))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)

    # Equal gradients on equal replicas: nothing that is sent makes a difference.
    if case.name not in OF_THEIR_OWN:
        alike, _ = run(start, np.broadcast_to(gradients[:, :1], gradients.shape))
        np.testing.assert_array_equal(alike, np.broadcast_to(alike[:, :1], alike.shape))

    if case.name in CONSTANT_SUM and num_workers > 1:
        apart = rng.normal(size=start.shape)
        mixed, state = run(apart, np.zeros((UPDATES, *start.shape)))
        total, sums = kept(case.name, mixed[-1], state)
        np.testing.assert_allclose(total, num_workers, rtol=1e-6)
        np.testing.assert_allclose(sums, apart.sum(axis=0), rtol=0, atol=1e-5)
        assert np.abs(mixed[-1] - apart).max() > 0.1


def kept(name: str, replicas: np.ndarray, state: Any) -> tuple[float, np.ndarray]:
    """Σ w and Σ w z, with what is in flight; all weights are 1, but for those who push."""
    if not name.startswith(("push_sum", "gosgd")):
        return len(replicas), replicas.sum(axis=0)
    weight = of_type(state, PushState).weight
    total, sums = weight.sum(), (weight[:, None] * replicas).sum(axis=0)
    if "delayed" in name:
        flight = of_type(state, InFlight)
        assert flight.weight.sum() > 0
        total, sums = total + flight.weight.sum(), sums + joined(flight.total).sum(axis=0)
    return total, sums
