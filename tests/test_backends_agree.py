"""Property 2: one result everywhere: in vmap, pmap, shard_map and over several processes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import toy
from cases import BACKENDS, CASES, one_way_rounds

import gossip_jax as gj

# Of parameters up to 1 after ten updates. What is compiled differs only in how loops are fused and sums
# are ordered; the gossip step itself agrees to the bit, which test_the_gossip_step_... shows.
TOLERANCE = 1e-6
PATIENCE = 240  # seconds, for processes that may share one core with much else


def assert_close(actual, want):
    for name in want:
        np.testing.assert_allclose(actual[name], want[name], rtol=0, atol=TOLERANCE, err_msg=name)


# One before the optimizer and one after it: a step of each protocol is compared below.
@pytest.mark.parametrize("name", ["all_reduce", "elastic_gossip"])
def test_a_training_run_gives_the_same_replicas_in_every_backend(name):
    draw = gj.uniform_peers(4, p=0.5)
    (case,) = [case for case in CASES if case.name == name]
    replicas = [
        jax.device_get(toy.run(case, gj.place(4, backend), draw).params) for backend in BACKENDS
    ]
    start = toy.init_params()
    assert all((replicas[0][name] != start[name]).any() for name in start), "nothing was trained"
    for other in replicas[1:]:
        assert_close(other, replicas[0])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_gossip_step_gives_the_same_bits_in_every_backend(case, rng):
    params, updates, center = rng.normal(size=(3, 6, 50)).astype(np.float32)
    center[:] = center[0]
    round = gj.Round([1, 0, 0, -1, 3, 2], step=2)
    results = []
    for backend in BACKENDS:
        update = gj.place(6, backend).map(case.one_update(), (0, 0, None))
        results.append(jax.device_get(update((params, case.state(center)), updates, round)[0]))
    if case.pairwise:  # all-reduces may add up workers in any order
        np.testing.assert_array_equal(results[1], results[0])
        np.testing.assert_array_equal(results[2], results[0])
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("law", [gj.uniform_peers, gj.pairing])
def test_rounds_drawn_by_each_worker_for_itself_are_equal_to_the_bit(law, backend):
    draw, key = law(5, p=0.5), gj.keys.run_key(0)
    drawn = gj.place(5, backend).map(lambda key, step: draw(key, step).peer, (None, None))
    for step in range(1, 6):
        every = np.asarray(drawn(key, np.int32(step)))
        np.testing.assert_array_equal(every, np.tile(draw(key, step).peer, (5, 1)))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def run_processes(processes: int, folder: Path) -> dict[str, np.ndarray]:
    """The parameters that the workers ended with, stacked, by CASE/NAME."""
    here, port = Path(__file__).parent, free_port()
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    running, logs = [], []
    try:
        for process in range(processes):
            arguments = [process, processes, port, folder / f"{process}.npz"]
            logs.append((folder / f"{process}.log").open("w+"))
            command = [sys.executable, str(here / "multiprocess_worker.py"), *map(str, arguments)]
            running.append(subprocess.Popen(command, env=environment, stdout=logs[-1], stderr=logs[-1]))
        codes = [process.wait(PATIENCE) for process in running]
    finally:
        for process in running:
            process.kill()  # SIGKILL: jax.distributed catches SIGTERM, and would hang on
            process.wait()
        said = "".join(log.seek(0) * "" + log.read() for log in logs)
        for log in logs:
            log.close()
    assert codes == [0] * processes, said
    results = []
    for process in range(processes):
        with np.load(folder / f"{process}.npz") as arrays:
            results.append(dict(arrays))
    return {name: np.concatenate([result[name] for result in results]) for name in results[0]}


@pytest.fixture(
    scope="module", params=[2, *(pytest.param(number, marks=pytest.mark.slow) for number in (3, 4))]
)
def over_a_network(request, tmp_path_factory) -> tuple[int, dict[str, np.ndarray]]:
    """How many processes trained, one job for all protocols, and what they ended with."""
    folder = tmp_path_factory.mktemp("processes")
    return request.param, run_processes(request.param, folder)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_processes_over_a_network_agree_with_pmap_in_one(case, over_a_network):
    processes, results = over_a_network
    draw = gj.uniform_peers(processes, p=0.5)
    want = jax.device_get(toy.run(case, gj.place(processes, "pmap"), draw).params)
    assert_close({name: results[f"{case.name}/{name}"] for name in want}, want)


@pytest.mark.parametrize("name", one_way_rounds(2))
def test_processes_over_a_network_receive_over_the_routes_of_graphs(name, over_a_network):
    """Three tell a shift from its inverse, which no swap of two does."""
    processes, results = over_a_network
    own = np.arange(4.0 * processes).reshape(processes, 4)
    round = one_way_rounds(processes)[name]
    want = np.asarray(gj.mixing_matrix(round), np.float64) @ own + own
    if name == "shift":
        np.testing.assert_array_equal(want, np.roll(own, 1, axis=0) + own)
    np.testing.assert_allclose(results[f"routes/{name}/"], want, rtol=0, atol=1e-5)
