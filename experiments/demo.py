"""Protocols on scikit-learn's digits: a table and a picture, in a minute or two on two cores."""

import dataclasses
import json
from pathlib import Path

import tyro
from matplotlib.figure import Figure

from experiments.common.cache import keep_programs
from experiments.common.cli import make_console, new_path, reported
from experiments.runs.console import result_grid
from experiments.runs.run_directory import RunDirectory
from experiments.train import begin, train
from experiments.training import run
from experiments.training.config import Config, ProtocolName
from experiments.training.protocols import USUAL, as_often
from gossip_jax.protocols import SPECS

# The thesis's learning rate and momentum, on a smaller model, with batches that leave each worker
# eight of its 300 images. EASGD communicates at every 32nd update, as a worker of the others initiates.
SETTINGS = Config(
    width=256,
    epochs=80,
    batch_size=32,
    learning_rate=0.001,
    momentum=0.99,
    checkpoint_every=0,  # it takes a minute
)


@dataclasses.dataclass(frozen=True)
class Demo:
    """Train with several protocols, four workers each, and compare what they reach and send."""

    protocols: tuple[ProtocolName, ...] = USUAL
    """Which protocols, of those that experiments.train offers."""

    out: Path | None = None
    """A new directory for the runs and the picture; runs/demo-TIME-PROCESS where not given."""

    epochs: int = SETTINGS.epochs
    """Passes over the training set, of each run."""

    seed: int = SETTINGS.seed
    """Of each run."""


def main() -> None:
    """Runs the command line: exits with 2 on bad input, with 130 on an interrupt."""
    options = tyro.cli(Demo, prog="python -m experiments.demo")
    console = make_console()
    out = options.out or new_path("demo")
    keep_programs()
    with reported(ValueError, OSError):
        configs = {
            protocol: dataclasses.replace(
                SETTINGS, epochs=options.epochs, seed=options.seed, **as_often(protocol, 1 / 32)
            ).checked()
            for protocol in options.protocols
        }
        dataset = SETTINGS.task.load(None)
        RunDirectory(out).make()
    results = {}
    with reported(OSError, kept=out):
        for protocol, config in configs.items():
            setup = run.set_up(config, dataset)
            directory = RunDirectory(out / protocol)
            directory.make()
            results[protocol] = train(*begin(setup, directory, console), directory, console)
        picture = out / "accuracy.png"
        plot({protocol: out / protocol for protocol in configs}).savefig(picture, dpi=150)
    console.print(result_grid(results, SETTINGS.task.metric).rich(console.width))
    console.print(f"picture: {picture}", soft_wrap=True)


def plot(runs: dict[str, Path]) -> Figure:
    """Validation accuracy over bytes sent and over updates, read from the runs' metrics.

    Args:
      runs: the run directories, by protocol.
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    over_bytes, over_updates = figure.subplots(1, 2, sharey=True)
    for label, path in runs.items():
        color = SPECS[label].color
        lines = (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        epochs = [json.loads(line) for line in lines]
        updates, mean, low, high, sent = (
            [epoch[name] for epoch in epochs]
            for name in (
                "updates",
                "validation_accuracy_mean",
                "validation_accuracy_min",
                "validation_accuracy_max",
                "bytes_sent_per_worker",
            )
        )
        over_updates.plot(updates, mean, color=color, label=label)
        over_updates.fill_between(updates, low, high, color=color, alpha=0.15, linewidth=0)
        if sent[-1] > 0:
            over_bytes.plot([size / 1e6 for size in sent], mean, color=color, label=label)
        else:
            over_bytes.axhline(mean[-1], color=color, linestyle="--", label=f"{label} (sends nothing)")
    over_bytes.set(
        xscale="log", xlabel="MB sent by each worker", ylabel="validation accuracy", ylim=(0.6, 1)
    )
    over_updates.set(xlabel="updates (band: worst to best worker)")
    figure.legend(*over_bytes.get_legend_handles_labels(), loc="outside upper center", ncols=len(runs))
    return figure


if __name__ == "__main__":
    main()
