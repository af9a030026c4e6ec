"""An update does no more than it must: no copies of parameters, no growth. And it can be looked at."""

import gzip
import json
import re
from typing import Any

import jax
import pytest
from hlo import turns

import gossip_jax as gj
from experiments.bench import steps
from experiments.runs.profiling import profile
from experiments.tasks import data
from experiments.training import loop, run
from experiments.training.config import Config
from gossip_jax.protocols import SPECS

WIDTH, WORKERS = 96, 4  # a width that nothing else in the program has


@pytest.fixture(scope="module")
def dataset() -> data.Dataset:
    return steps.synthetic(WORKERS * 2 * steps.BATCH)


@pytest.fixture(scope="module", params=["pmap", "vmap"])
def floor(request, dataset) -> tuple[str, int]:
    """A backend, and how often the update written by hand copies parameters on it."""
    backend = request.param
    return backend, copies(steps.floor_program(dataset, WORKERS, backend, WIDTH))


def copies(program: steps.Program) -> int:
    """How often an update, silent or not, copies arrays of the parameters' shapes, at most."""
    shape = re.compile(rf"[fu]32\[({WORKERS},|1,)?(784|{WIDTH}),{WIDTH}\]")
    of_parameters = [
        [i for i in turn if shape.match(i.shape)] for turn in turns(program.compiled.as_text())
    ]
    assert any(of_parameters), "the checker must see the parameters"
    return max(sum(i.opcode.startswith("copy") for i in turn) for turn in of_parameters)


# Those that send gradients, or parameters from before the update. To mix what comes after it, or to
# keep more than one replica, takes copies.
LEAN = [
    spec.name
    for spec in SPECS.values()
    if spec.can_be_late or spec.averages_gradients or not spec.options
]


@pytest.mark.parametrize(
    "protocol",
    [
        name if name in ("elastic_gossip", "push_sum") else pytest.param(name, marks=pytest.mark.slow)
        for name in LEAN
    ],
)
def test_parameters_are_copied_no_more_often_than_in_an_update_written_by_hand(
    protocol, floor, dataset
):
    backend, copied_by_hand = floor
    config = steps.configured(protocol, WORKERS, backend, WIDTH)
    assert copies(steps.protocol_program(config, dataset)) <= copied_by_hand


def test_the_checker_sees_a_copy(dataset):
    """Of what is returned beside what it was made into."""
    program = steps.floor_program(dataset, WORKERS, "vmap", WIDTH)
    before = copies(program)
    keep = jax.jit(lambda state: (state, jax.tree.map(jax.numpy.copy, state)))
    program.compiled = keep.lower(program._state).compile()
    assert copies(program) > before


def test_memory_does_not_grow_over_a_run():
    setup = run.set_up(Config(width=16, epochs=6, p=0.5), data.load("digits"))
    sizes = []
    for progress, _ in loop.epochs_of_one(setup, run.start(setup)):
        jax.block_until_ready(progress.state)
        sizes.append(sum(array.nbytes for array in jax.live_arrays()))
    assert len(set(sizes[1:])) == 1, "live arrays are the same after every epoch"


@pytest.mark.parametrize("backend", [pytest.param("pmap", marks=pytest.mark.slow), "vmap"])
def test_a_trace_names_updates_and_exchanges(backend, tmp_path):
    setup = run.set_up(Config(width=16, backend=backend, p=0.125), data.load("digits"))
    profile(setup, tmp_path)
    (path,) = tmp_path.rglob("perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [str(event.get("name")) for event in events]
    assert names.count("update") == 6
    assert names.count("silence") == 3
    assert sum(bool(re.fullmatch(r"exchange \d-\d(, \d-\d)*", name)) for name in names) == 3


def test_operations_carry_the_names_of_what_they_are_for():
    setup = run.set_up(Config(width=16, backend="pmap", p=0.125), data.load("digits"))
    state = run.start(setup).state
    rounds = gj.training.draw_rounds(setup.draw, setup.key, 1, setup.updates_per_epoch)
    arguments: Any = (state, setup.shards, rounds, setup.key, setup.traced, None)
    program = setup.program.compile_epoch(*arguments).as_text()
    scopes = set(re.findall(r"/(gradient|optimizer|exchange_\d-\d(?:_\d-\d)*)/", program))
    pairs = {f"exchange_{i}-{k}" for i in range(4) for k in range(i + 1, 4)}
    assert scopes == {"gradient", "optimizer"} | pairs
