"""Compiled for TPUs that are not there: few permutes, and those of a known route behind the gradient.

Needs libtpu: here (`pip install '.[tpu]'`), or in the environment whose Python LIBTPU_PYTHON names.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tpu_program import ENVIRONMENT, counts

PATIENCE = 900  # seconds to compile for 16 devices, where a core is shared with much else


def python_with_libtpu() -> str:
    if named := os.environ.get("LIBTPU_PYTHON"):
        return named
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu, or LIBTPU_PYTHON=the Python of an environment that has it")
    return sys.executable


def compiled(topology: str, num_workers: int, draw: str) -> dict[str, int]:
    here = Path(__file__).resolve().parent
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(here.parent)}
    environment.pop("XLA_FLAGS", None)  # those of the tests are the CPU's
    command = [python_with_libtpu(), str(here / "tpu_program.py"), topology, str(num_workers), draw]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "num_workers", "draw"),
    [("2x2", 4, "complete"), ("4x4", 16, "complete"), ("4x4", 16, "ring"), ("4x4", 16, "one-peer")],
)
def test_a_step_for_a_tpu_has_one_permute_a_leaf_and_route_and_hides_those_it_knows(
    topology, num_workers, draw
):
    """The bounds of the project's issue 11."""
    found = compiled(topology, num_workers, draw)
    print(topology, draw, found)
    assert 0 < found["permutes"] <= found["leaves"] * found["routes"]
    if draw != "complete":
        assert found["pairs"] == found["permutes"], "each is started, and done"
        assert found["overlapped"] >= 0.8 * found["pairs"]


# Of a ring two routes, of the complete graph 28 pairs; four leaves, and a weight where one is sent.
PERMUTES = {
    **dict.fromkeys(("elastic_gossip", "gossiping_sgd"), 28 * 4),
    **dict.fromkeys(("dpsgd", "gossip_pga", "quasi_global_momentum", "exact_diffusion"), 2 * 4),
    "push_sum": 2 * (4 + 1),
    "gosgd": 28 * (4 + 1),
    "noloco": 28 * 4 * 2,
    "gradient_tracking": 2 * 4 * 2,
}
COLLECTIVES = {
    **dict.fromkeys(("all_reduce", "elastic_averaging", "local_sgd", "slowmo", "diloco"), 1),
    "gossip_pga": 1,
    "post_local_sgd": 2,
    "streaming_diloco": 4,
}


@pytest.mark.slow
def test_each_protocol_has_as_many_collectives_as_its_graph_says():
    names = sorted({*PERMUTES, *COLLECTIVES, "no_communication"})
    script = (
        "import json; from experiments.bench import tpu\n"
        f"print(json.dumps([row._asdict() for row in tpu.measure(8, {names})]))"
    )
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    environment.pop("XLA_FLAGS", None)
    command = [python_with_libtpu(), "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    found = {row["program"]: row for row in json.loads(done.stdout.splitlines()[-1])}
    assert {name: found[name]["permutes"] for name in names} == dict.fromkeys(names, 0) | PERMUTES
    assert {name: found[name]["collectives"] for name in names} == dict.fromkeys(names, 0) | COLLECTIVES


SCHEDULE = """\
%body (a: f32[8]) -> f32[8] {
  %start.1 = (f32[8], f32[8]) collective-permute-start(f32[8] %a), source_target_pairs={{0,1}}
  %product = f32[8] fusion(%b), kind=kOutput, calls=%around_a_convolution
  %done.1 = f32[8] collective-permute-done((f32[8], f32[8]) %start.1)
  %start.2 = (f32[8], f32[8]) collective-permute-start(f32[8] %a), source_target_pairs={{1,0}}
  %sum = f32[8] add(%product, %done.1)
  ROOT %done.2 = f32[8] collective-permute-done(%start.2)
}
"""


def test_the_counter_tells_a_permute_with_a_product_behind_it_from_one_without():
    assert counts(SCHEDULE) == {"permutes": 2, "pairs": 2, "overlapped": 1}
