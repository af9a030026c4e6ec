"""Every protocol after the thesis is what its equations say, update after update, in every backend."""

import numpy as np
import pytest
from decentral_cases import CASES, as_matrices, drawn, local_optimizer, run, values

IN_SHORT = [("vmap", 1), ("vmap", 2), ("vmap", 5), ("shard_map", 3)]
IN_LONG = [("vmap", 8), ("pmap", 8), ("pmap", 3), ("shard_map", 2)]


@pytest.mark.parametrize(
    ("backend", "num_workers"),
    [*IN_SHORT, *(pytest.param(*both, marks=pytest.mark.slow) for both in IN_LONG)],
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_updates_match_the_oracle(case, backend, num_workers, rng):
    start, gradients = values(rng, num_workers)
    rounds = drawn(case.draw(num_workers))
    local = local_optimizer(nesterov=case.nesterov)
    found, _ = run(case.make(), rounds, start, gradients, backend, local)
    wanted = case.oracle(start, gradients, as_matrices(rounds))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)
