"""What an update costs with each protocol, against the same update written by hand."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import gossip_jax as gj
from experiments.bench import floor, limits
from experiments.bench.limits import Rates
from experiments.bench.timing import in_turn, ratio
from experiments.tasks.data import Dataset, Examples, Images
from experiments.training import run
from experiments.training.config import Config
from experiments.training.protocols import as_often, make_draw
from gossip_jax import keys, traffic, training
from gossip_jax.protocols import SPECS

IMAGE, NUM_INPUTS, CLASSES = (28, 28, 1), 28 * 28, 10  # MNIST's
BATCH = 32  # of one worker, as the thesis has it for four
PROBABILITIES = (1.0, 1 / 8, 1 / 32, 0.0)
_DRAWN = 64  # runs of rounds, of which the most usual one is taken


class Step(NamedTuple):
    """The cost of an update."""

    workers: int
    backend: str
    protocol: str  # or "floor"
    p: float | None  # of the protocols that have one
    milliseconds: float  # median
    ratio_to_floor: float  # median over turns
    compile_seconds: float  # of the program, which serves every p
    memory_bytes: int  # of the program on all devices, by the compiler's account
    arithmetic_milliseconds: float  # what its arithmetic must take at least
    memory_milliseconds: float  # and its memory traffic


class Program:
    """A compiled epoch, the state that it trains, and how long it took to compile."""

    def __init__(self, compiled: Any, state: Any, train: Callable[[Any, Any], Any], seconds: float):
        """`train` makes a state, and a loss, of a state and rounds."""
        self.compiled, self.compile_seconds = compiled, seconds
        self._state, self._train = state, train

    @property
    def memory(self) -> int:
        """The bytes that it takes on a device: for arguments, results and temporary values."""
        sizes = self.compiled.memory_analysis()
        return (
            sizes.argument_size_in_bytes
            + sizes.output_size_in_bytes
            + sizes.temp_size_in_bytes
            - sizes.alias_size_in_bytes
        )

    def __call__(self, rounds: Any = None) -> Any:
        """Trains for an epoch."""
        self._state, *rest = self._train(self._state, rounds)
        return self._state, rest


def measure(
    protocols: Sequence[str],
    num_workers: int,
    backend: Any,
    width: int,
    updates: int,
    repeats: int,
    rates: Rates,
) -> list[Step]:
    """The floor and some protocols on one backend.

    Args:
      protocols: their names.
      num_workers: W.
      backend: of `gossip_jax.place`.
      width: of the hidden layers.
      updates: in an epoch, which is one dispatch.
      repeats: epochs with each protocol and p.
      rates: of the machine.
    """
    dataset = synthetic(num_workers * updates * BATCH)
    programs = {"floor": floor_program(dataset, num_workers, backend, width)}
    cases: dict[tuple[str, float | None], Callable[[], Any]] = {("floor", None): programs["floor"]}
    for protocol in protocols:
        config = configured(protocol, num_workers, backend, width)
        programs[protocol] = program = protocol_program(config, dataset)
        for p in PROBABILITIES if SPECS[protocol].draws_rounds else (None,):
            rounds = usual_rounds(make_draw(dataclasses.replace(config, p=p or 0.0)), updates)
            cases[protocol, p] = lambda program=program, rounds=rounds: program(rounds)
    seconds = in_turn(cases, repeats)
    devices = 1 if backend == "vmap" else num_workers
    is_shared = devices == 1 or jax.devices()[0].platform == "cpu"  # CPU devices share one machine
    sizes = (NUM_INPUTS, width, width, width, CLASSES)
    limit = limits.limit(rates, num_workers if is_shared else 1, BATCH, sizes)
    return [
        Step(
            num_workers,
            backend,
            name,
            p,
            statistics.median(times) / updates * 1e3,
            ratio(times, seconds["floor", None]),
            programs[name].compile_seconds,
            programs[name].memory * devices,
            *limit,
        )
        for (name, p), times in seconds.items()
    ]


def configured(protocol: str, num_workers: int, backend: Any, width: int) -> Config:
    """The thesis's settings for MNIST, but that every worker takes 32 examples for any W."""
    return Config(
        workers=num_workers,
        backend=backend,
        width=width,
        batch_size=num_workers * BATCH,
        validation_examples=1,
        **as_often(protocol, 1 / 32),
    ).checked()


def floor_program(dataset: Dataset, num_workers: int, backend: Any, width: int) -> Program:
    """An epoch of the floor over the whole dataset."""
    placement, key = (
        gj.place(num_workers, backend, devices=jax.devices()[:num_workers]),
        keys.run_key(0),
    )
    train = Examples(dataset.train.image[:-1], dataset.train.label[:-1])
    shards = placement.scatter(
        jax.tree.map(lambda leaf: leaf.reshape(num_workers, -1, *leaf.shape[1:]), tuple(train))
    )
    init = placement.map(lambda key: floor.init(key, NUM_INPUTS, width, CLASSES), in_axes=(None,))
    state = init(key)
    epoch = floor.epoch(BATCH, len(train.label) // num_workers // BATCH)
    mapped = floor.on_all_workers(epoch, backend, num_workers)
    before = time.perf_counter()
    compiled = mapped.lower(state, shards, key).compile()
    seconds = time.perf_counter() - before
    return Program(compiled, state, lambda state, _: compiled(state, shards, key), seconds)


def protocol_program(config: Config, dataset: Dataset) -> Program:
    """An epoch of the library with these settings, as `experiments.train` runs it."""
    setup = run.set_up(config, dataset)
    state = run.start(setup).state
    rounds = training.draw_rounds(setup.draw, setup.key, 1, setup.updates_per_epoch)
    rest = (setup.key, setup.traced, None)
    before = time.perf_counter()
    compiled = setup.program.compile_epoch(state, setup.shards, rounds, *rest)
    seconds = time.perf_counter() - before
    return Program(
        compiled, state, lambda state, rounds: compiled(state, setup.shards, rounds, *rest), seconds
    )


def params(width: int) -> Any:
    """The shapes and dtypes of a replica."""
    return jax.eval_shape(lambda key: floor.init(key, NUM_INPUTS, width, CLASSES)[0], keys.run_key(0))


def synthetic(num_examples: int) -> Dataset:
    """Noise in MNIST's shape, since what is in the images makes no difference; one more to validate."""
    rng = np.random.default_rng(0)

    def examples(number: int) -> Examples:
        image = rng.integers(0, 256, (number, *IMAGE)).astype(np.uint8)
        return Examples(image, rng.integers(0, CLASSES, number).astype(np.int32))

    return Images(
        examples(num_examples + 1),
        examples(1),
        num_validation=1,
        num_classes=CLASSES,
        white=255,
        mean=(floor.MEAN,),
        std=(floor.STD,),
    )


def usual_rounds(draw: gj.Draw, updates: int) -> gj.Round:
    """Rounds with as many exchanges as are to be expected, or nearly so: the fewer the updates, the
    more would one draw differ from another.
    """
    expected = traffic.expected_routes(draw, {}, updates).exchanges

    def distance(rounds: gj.Round) -> float:
        return abs(traffic.counted_routes(rounds, {}).exchanges - expected)

    drawn = (training.draw_rounds(draw, keys.run_key(seed), 1, updates) for seed in range(_DRAWN))
    return min(drawn, key=distance)
