"""Trains a model on several workers with one protocol: `python -m experiments.train --help`."""

import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import jax
import tyro
from rich.console import Console

from experiments import data, memory, run
from experiments.config import Config
from experiments.console import EpochProgress, result_table
from experiments.run_directory import RunDirectory, require_free


def main() -> None:
    """Runs the command line: exits with 2 on bad input, with 130 on an interrupt."""
    config = tyro.cli(Config, prog="python -m experiments.train")
    console = Console()
    memory.return_large_blocks()
    try:
        config = config.checked()
        out = config.out or _new_path(config)
        require_free(out)
        make_cpu_devices(config)
        setup = run.set_up(config, data.load(config.dataset, config.data_dir))
        directory = RunDirectory(out)
        directory.write_config(setup)
    except (ValueError, OSError) as error:
        fail(str(error))
    try:
        result = train(setup, directory, console)
    except OSError as error:
        fail(f"{directory.path} cannot be written: {error.strerror}")
    except jax.errors.JaxRuntimeError as error:
        if "memory" not in str(error):
            raise
        fail(f"out of memory: lower --width, --workers or --batch-size ({str(error).splitlines()[0]})")
    except KeyboardInterrupt:
        fail(f"interrupted; what was measured so far is in {directory.path}", code=130)
    console.print(result_table({config.protocol: result}))
    console.print(
        f"{result.updates} updates, {result.updates_per_second:.1f} a second; see {directory.path}",
        soft_wrap=True,
    )


def train(setup: run.Setup, directory: RunDirectory, console: Console) -> run.Result:
    """Trains from the start to the last epoch, with progress shown and the run's files written."""
    start = progress = run.start(setup)
    with EpochProgress(console, setup.config.protocol, setup.config.epochs) as shown:
        for progress, metrics in run.train(setup, start):  # noqa: B007
            directory.append_metrics(metrics)
            shown.update(metrics)
    result = run.result(setup, progress)
    directory.write_result(result)
    return result


def make_cpu_devices(config: Config) -> None:
    """Has JAX make a CPU device for each worker, where the backend wants that.

    It changes nothing where the environment says how many to make, nor on a GPU or TPU. To be
    called before the first use of JAX's devices.
    """
    said = "JAX_NUM_CPU_DEVICES" in os.environ or "device_count" in os.environ.get("XLA_FLAGS", "")
    if config.backend in ("pmap", "shard_map") and not said:
        jax.config.update("jax_num_cpu_devices", config.workers)


def fail(message: str, code: int = 2) -> NoReturn:
    """Ends the program with a message on standard error."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)


def _new_path(config: Config) -> Path:
    return Path("runs", f"{config.dataset}-{config.protocol}-{time.strftime('%Y%m%d-%H%M%S')}")


if __name__ == "__main__":
    main()
