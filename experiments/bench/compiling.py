"""How long a program takes to compile where there are many workers."""

from typing import Any, NamedTuple

from experiments.bench import steps


class Compiled(NamedTuple):
    """A program that was compiled, and not run."""

    workers: int
    backend: str
    program: str
    compile_seconds: float
    memory_bytes: int  # on all devices, by the compiler's account


def measure(num_workers: int, backend: Any, width: int) -> list[Compiled]:
    """The floor, and Elastic Gossip, which has every pair of workers in its program."""
    dataset = steps.synthetic(num_workers * steps.BATCH)
    config = steps.configured("elastic_gossip", num_workers, backend, width)
    programs = {
        "floor": steps.floor_program(dataset, num_workers, backend, width),
        "elastic_gossip": steps.protocol_program(config, dataset),
    }
    devices = 1 if backend == "vmap" else num_workers
    return [
        Compiled(num_workers, backend, name, program.compile_seconds, program.memory * devices)
        for name, program in programs.items()
    ]
