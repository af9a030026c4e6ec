"""An exchange can be differentiated, in forward and reverse mode, however replicas travel.

Elastic Gossip's exchange is linear, θ' = A θ with A = I - α L; so the derivative along v is A v, and
the gradient of c·θ' is Aᵀ c. With α = ¼ and small whole numbers all of it is exact in every type.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import PLACEMENTS, communicate, placement

import gossip_jax as gj
from gossip_jax import exchange, rounds

ALPHA = 0.25
TYPES = {"wide": jnp.float32, "brain": jnp.bfloat16, "half": jnp.float16}
PEERS = {
    "one pair": [1, -1, -1, -1],
    "several exchanges, one after the other": [1, 2, -1, 0],
    "nobody": [-1, -1, -1, -1],
}


def matrix_of(peer: list[int]) -> np.ndarray:
    contact = np.asarray(gj.in_contact(gj.Round(peer)), np.float64)
    return np.eye(len(peer)) - ALPHA * (np.diag(contact.sum(axis=1)) - contact)


def of_types(array: np.ndarray) -> Any:
    return {name: jnp.asarray(array, dtype) for name, dtype in TYPES.items()}


def check_derivatives(function: Any, matrix: np.ndarray, rng: np.random.Generator) -> None:
    """Of a function of stacked trees [W, 3] that multiplies by a matrix, worker by worker."""
    shape = (len(matrix), 3)
    theta, tangent, cotangent = rng.integers(-4, 5, (3, *shape)).astype(np.float64)
    _, moved = jax.jvp(function, (of_types(theta),), (of_types(tangent),))
    _, pull_back = jax.vjp(function, of_types(theta))
    (gradient,) = pull_back(of_types(cotangent))
    for name, dtype in TYPES.items():
        assert moved[name].dtype == gradient[name].dtype == dtype
        np.testing.assert_array_equal(np.asarray(moved[name], np.float64), matrix @ tangent, name)
        np.testing.assert_array_equal(
            np.asarray(gradient[name], np.float64), matrix.T @ cotangent, name
        )


def moving(move: Any, round: gj.Round) -> Any:
    return lambda theta: move(theta, jax.tree.map(jnp.zeros_like, theta), round)


@pytest.mark.parametrize(
    ("where", "wire_dtype"),
    [
        *((where, None) for where in (*PLACEMENTS, "over gloo", "two a device, over gloo")),
        *((where, "bfloat16") for where in ("vmap", "pmap")),
        pytest.param("over gloo", "bfloat16", marks=pytest.mark.slow),
        pytest.param("two a device", "float16", marks=pytest.mark.slow),
    ],
)
def test_derivatives_of_elastic_gossip_are_those_of_its_matrix(where, wire_dtype, rng, monkeypatch):
    if where.endswith("over gloo"):
        monkeypatch.setattr(exchange, "_has_several_processes", lambda: True)
        where = "two a device" if where.startswith("two") else "pmap"
    move = communicate(gj.elastic_gossip(ALPHA, wire_dtype=wire_dtype), placement(where, 4))
    for peer in PEERS.values():
        check_derivatives(moving(move, gj.Round(peer)), matrix_of(peer), rng)


@pytest.mark.parametrize("backend", ["vmap", "pmap", "shard_map"])
def test_the_gradient_of_the_sum_after_a_pairs_exchange_is_three_quarters_and_a_quarter(backend):
    """As issue trackers of neighbouring projects have it: [0.75, 0] where what is sent is cut off."""
    move = moving(communicate(gj.elastic_gossip(ALPHA), gj.place(2, backend)), gj.Round([1, -1]))
    gradient = jax.grad(lambda theta: move(theta)["wide"][0].sum().astype(jnp.float32))
    found = gradient(of_types(np.ones((2, 3))))
    np.testing.assert_array_equal(found["wide"], [[0.75] * 3, [0.25] * 3])


@pytest.mark.parametrize("where", ["vmap", "pmap", "two a device", "over gloo"])
def test_derivatives_over_one_way_routes_go_back_the_other_way(where, rng, monkeypatch):
    """D-PSGD with weights ½ and ¼, on routes that are known to be in use, and on a chosen one."""
    if where == "over gloo":
        monkeypatch.setattr(exchange, "_has_several_processes", lambda: True)
    workers = np.arange(4)
    sources = [(workers + 1) % 4, (workers + 2) % 4]
    graph = gj.Graph("quarters", sources, np.full((2, 4), 0.25))
    place = placement("pmap" if where == "over gloo" else where, 4)
    move = communicate(gj.dpsgd(wire_dtype="bfloat16"), place)
    for round in (rounds.all_routes(graph, 1), gj.in_turn(graph)(gj.keys.run_key(0), 1)):
        matrix = np.asarray(gj.mixing_matrix(round), np.float64)
        assert (matrix != matrix.T).any()
        check_derivatives(moving(move, round), matrix, rng)
