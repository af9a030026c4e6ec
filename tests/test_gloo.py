"""CPUs of several processes swap replicas by a sum over each pair. Forced here, in one process:
test_backends_agree.py does it over several.
"""

import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import AXES, PAIRWISE, possible_exchanges, telling_peers
from hlo import collectives, computations

import gossip_jax as gj
from experiments.cluster import gloo
from gossip_jax import exchange


@pytest.fixture
def over_gloo(monkeypatch):
    monkeypatch.setattr(exchange, "_has_several_processes", lambda: True)


def moved(case, num_workers, params, updates, peers, backend: Any = "pmap"):
    update = gj.place(num_workers, backend).map(case.one_update(), AXES)
    state = case.state(params)
    return [jax.device_get(update((params, state), updates, gj.Round(peer))[0]) for peer in peers]


# Every protocol, and every kind of W: two, even and odd.
@pytest.mark.parametrize(
    ("case", "num_workers"),
    [*((case, 5) for case in PAIRWISE), (PAIRWISE[0], 2), (PAIRWISE[0], 4)],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_sum_over_each_pair_swaps_replicas_to_the_bit(case, num_workers, rng, request):
    """Also what no sum of floats would leave alone: infinite, NaN, and very unequal values."""
    params = {
        "large": rng.normal(size=(num_workers, 200, 201)).astype(np.float32),
        "small": rng.normal(size=(num_workers, 7)).astype(jnp.bfloat16),
        "odd": np.tile(np.array([np.inf, -np.inf, np.nan, 1e38, -0.0], np.float32), (num_workers, 1)),
    }
    params["odd"][0] = 1e-30
    updates = jax.tree.map(np.ones_like, params)
    peers = telling_peers(rng, num_workers)
    want = moved(case, num_workers, params, updates, peers)
    request.getfixturevalue("over_gloo")
    for backend in ("pmap", "shard_map"):
        got = moved(case, num_workers, params, updates, peers, backend)
        jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize("num_workers", [4, 5])
def test_each_sum_is_over_one_pair_or_a_whole_matching_in_bits(over_gloo, num_workers):
    move: Any = gj.place(num_workers, "pmap").map(PAIRWISE[0].one_update(), AXES)
    replicas = jnp.zeros((num_workers, 200, 201))
    arguments = (replicas, ()), replicas, gj.Round([-1] * num_workers)
    program = move.lower(*arguments).compile().as_text()
    seen = set()
    for instruction in (i for part in computations(program)[0].values() for i in collectives(part)):
        assert instruction.opcode.startswith("all-reduce")
        assert instruction.shape.startswith("u32[200,201]")
        listed = re.search(r"replica_groups=\{((?:\{[\d,]+\},?)+)\}", instruction.line)
        assert listed
        groups = [tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", listed[1])]
        assert sorted(itertools.chain(*groups)) == list(range(num_workers))
        seen.add(frozenset(group for group in groups if len(group) > 1))
    assert seen == possible_exchanges(num_workers)
    listed = gloo.groups(program, num_workers) - {gloo.ALL}
    assert {frozenset(one for one in of if len(one) > 1) for of in listed} == seen


def test_groups_are_read_however_xla_writes_them():
    program = """
      a = all-reduce(x), replica_groups={{0,1},{2,3}}, use_global_device_ids=true
      b = all-gather(x), replica_groups=[2,2]<=[4], dimensions={0}
      c = all-reduce(x), replica_groups=[2,2]<=[2,2]T(1,0), to_apply=add
      d = all-reduce(x), replica_groups={{0},{1},{2},{3}}, to_apply=add
      e = collective-permute(x), source_target_pairs={{0,1},{1,0}}
    """
    assert gloo.groups(program, 4) == {gloo.ALL, ((0, 1), (2, 3)), ((0, 2), (1, 3))}


def test_groups_can_be_put_in_contact_whatever_their_sizes():
    gloo.contact(jax.devices()[:5], [gloo.ALL, ((0, 1), (2, 3)), ((0, 4), (1,), (2, 3))])()
