"""Measures what an update costs: `python -m experiments.bench --help`."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import tyro

import gossip_jax as gj
from experiments.bench import compiling, exchanges, limits, steps, tables, tpu
from experiments.bench.limits import Rates
from experiments.common import strict_json
from experiments.common.cli import flag, make_console, make_cpu_devices, new_path, reported
from experiments.common.files import write_whole
from experiments.common.grids import Grid
from experiments.runs.provenance import surroundings
from experiments.training.config import ProtocolName
from experiments.training.protocols import USUAL
from gossip_jax import checks, traffic

Section = Literal["steps", "compile", "exchanges", "tpu"]
BackendName = Literal["pmap", "shard_map", "vmap"]
_COMPILED_ONLY = 16  # workers
_EXCHANGED = ((4, 1), (4, 10), (4, 100), (2, 1), (8, 1), (16, 1))  # workers, leaves


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure the cost of an update, of an exchange and of compiling, on this machine.

    Times are medians of several turns, in each of which every case runs once. Their ratios to the floor
    (the same update, written by hand in plain JAX) say more than the times. docs/speed.md says how to
    read it.
    """

    sections: tuple[Section, ...] = ("steps", "compile", "exchanges")
    """What to measure. tpu compiles for TPUs, of which none need be here, and wants the extra of this
    name: pip install '.[tpu]'."""

    protocols: tuple[ProtocolName, ...] = USUAL
    """Whose steps to measure, and to compile for eight TPUs."""

    workers: tuple[int, ...] = (4, 8)
    """Numbers of workers to measure the steps with."""

    backends: tuple[BackendName, ...] = ("pmap", "vmap")
    """Those that need more devices than there are, are left out. JAX makes pmap of shard_map, which so
    costs the same."""

    width: int = 1024
    """Units in each of the three hidden layers."""

    updates: int = 16
    """In one dispatch."""

    repeats: int = 3
    """Turns that count."""

    out: Path | None = None
    """A new file for the figures, as JSON; runs/bench-TIME-PROCESS.json where not given."""

    def check(self) -> None:
        """Raises ValueError where a setting is out of range."""
        for name in ("width", "updates", "repeats"):
            checks.at_least_one("bench", flag(name), getattr(self, name))
        for number in self.workers:
            checks.at_least_one("bench", flag("workers"), number)


def main() -> None:
    """Runs the command line: exits with 2 on bad input, with 130 on an interrupt."""
    bench = tyro.cli(Bench, prog="python -m experiments.bench")
    console = make_console()
    with reported(ValueError, OSError):
        bench.check()
        if "tpu" in bench.sections:
            tpu.prepare()
        out = bench.out or new_path("bench").with_suffix(".json")
        if out.exists():
            raise ValueError(f"--out {out} is there already; name a new file")
        make_cpu_devices(max(*bench.workers, _COMPILED_ONLY))
        found: dict[str, Any] = {"options": dataclasses.asdict(bench) | {"out": str(out)}}
        found["made_on"] = surroundings(gj.place(1, devices=jax.devices()[:1]))
        write_whole(out, strict_json.dumps(found, indent=1) + "\n")
    with reported(ValueError, OSError, kept=out):
        rates = limits.rates(bench.repeats)
        found["rates"] = rates._asdict()
        console.print(tables.rates(rates), soft_wrap=True)
        for section, rows, grid in _measure(bench, rates):
            found.setdefault(section, []).extend(row._asdict() for row in rows)
            write_whole(out, strict_json.dumps(found, indent=1) + "\n")
            console.print(grid.rich(console.width), "")
    console.print(f"see {out}", soft_wrap=True)


def _measure(bench: Bench, rates: Rates) -> Iterator[tuple[Section, Sequence[Any], Grid]]:
    """The sections that are asked for, part by part, each with its table."""
    if "steps" in bench.sections:
        for number, backend in itertools.product(bench.workers, bench.backends):
            if _fits(number, backend):
                rows = steps.measure(
                    bench.protocols, number, backend, bench.width, bench.updates, bench.repeats, rates
                )
                yield "steps", rows, tables.steps(rows)
    if "compile" in bench.sections:
        for backend in bench.backends:
            if _fits(_COMPILED_ONLY, backend):
                rows = compiling.measure(_COMPILED_ONLY, backend, bench.width)
                yield "compile", rows, tables.compiling(rows)
    if "exchanges" in bench.sections:
        size = traffic.num_bytes(steps.params(bench.width)) // 4
        for backend in bench.backends:
            rows = [
                row
                for number, leaves in _EXCHANGED
                if _fits(number, backend)
                for row in exchanges.measure(number, backend, leaves, size, bench.repeats)
            ]
            yield "exchanges", rows, tables.exchanges(rows)
    if "tpu" in bench.sections:
        for number in tpu.TOPOLOGIES:
            rows = tpu.measure(number, bench.protocols)
            yield "tpu", rows, tables.tpu(rows)


def _fits(num_workers: int, backend: BackendName) -> bool:
    return backend == "vmap" or num_workers <= len(jax.devices())


if __name__ == "__main__":
    main()
