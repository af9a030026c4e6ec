"""The files of a run: `config.json`, `metrics.jsonl`, `result.json`."""

import dataclasses
from pathlib import Path

from experiments import strict_json
from experiments.files import write_whole
from experiments.provenance import surroundings
from experiments.run import EpochMetrics, Result, Setup


def require_free(path: Path) -> None:
    """Raises ValueError where there is something in a directory at `path`."""
    if path.is_dir() and any(path.iterdir()):
        holds = "another run" if (path / "config.json").exists() else "other files"
        raise ValueError(f"--out {path} holds {holds}; name a new or an empty directory")


class RunDirectory:
    """A new directory that a run writes to, and never one that holds something else."""

    def __init__(self, path: Path):
        """Makes the directory.

        Raises:
          ValueError: there is something in it already.
          OSError: it cannot be made.
        """
        require_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"--out {path} cannot be made: {error.strerror}") from error
        self.path = path

    def write_config(self, setup: Setup) -> None:
        """All that reproduces the run, with the versions and devices that it ran on."""
        content = strict_json.dumps(
            dataclasses.asdict(setup.config) | surroundings(setup.program.placement), indent=2
        )
        # Of two runs that were given the same empty directory, one must fail here.
        with (self.path / "config.json").open("x", encoding="utf-8") as file:
            file.write(content + "\n")

    def append_metrics(self, metrics: EpochMetrics) -> None:
        """One line for an epoch."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(strict_json.dumps(metrics._asdict()) + "\n")

    def write_result(self, result: Result) -> None:
        """The run's figures: the file is there, whole, only once the run has finished."""
        write_whole(self.path / "result.json", strict_json.dumps(result._asdict(), indent=2) + "\n")
