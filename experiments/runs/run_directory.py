"""The files of a run: `config.json`, `metrics.jsonl`, `result.json`, `checkpoints/`."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.common import numerics, strict_json
from experiments.common.files import LOCK, exists, reason, write_whole
from experiments.runs import records
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.records import Record
from experiments.training.config import Config, typed
from experiments.training.run import EpochMetrics


def require_free(path: Path) -> None:
    """Raises ValueError where there is something in a directory at `path`."""
    if path.is_dir() and any(file.name not in _BEFORE_A_RUN for file in path.iterdir()):
        holds = "another run" if (path / "config.json").exists() else "other files"
        raise ValueError(f"--out {path} holds {holds}; name a new or an empty directory")


class RunDirectory:
    """A directory that one run writes to. All files in it have fixed names."""

    def __init__(self, path: Path, writes: bool = True):
        """Names it; nothing is made yet. Of several processes, only the first `writes`."""
        self.path, self._writes = path, writes
        self._is_behind = True  # its files are of the run as it was before it went on

    def make(self) -> None:
        """Makes the directory, for a new run.

        Raises:
          ValueError: there is something in it already.
          OSError: it cannot be made.
        """
        if not self._writes:
            return
        require_free(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"--out {self.path} cannot be made: {error.strerror}") from error

    @property
    def checkpoints(self) -> Checkpoints:
        """Finds those of the run."""
        return Checkpoints(self.path / "checkpoints")

    @property
    def has_result(self) -> bool:
        """Whether the run has finished."""
        return exists(self.path / "result.json")

    @property
    def has_config(self) -> bool:
        """Whether a run has begun here."""
        return exists(self.path / "config.json")

    def read_config(self) -> Config:
        """The settings of the run that is here.

        Raises:
          ValueError: there is no run here, or its file is damaged; it names it.
          OSError: the file cannot be read.
        """
        path = self.path / "config.json"
        try:
            content = json.loads(path.read_bytes())
            given = {
                field.name: typed(field.name, content[field.name])
                for field in dataclasses.fields(Config)
                if field.name not in _NOT_KEPT
            }
            return Config(**given).checked()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ValueError(f"--resume {self.path} holds no run: {reason(error)}") from error
        except OSError as error:
            raise OSError(f"--resume {self.path} cannot be read: {reason(error)}") from error
        except KeyError as error:
            raise ValueError(f"{path} is of another version: there is no {error}") from error
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error

    def require_same_numerics(self) -> None:
        """Raises ValueError where the run here was made with other settings of JAX than now."""
        path = self.path / "config.json"
        kept = json.loads(path.read_bytes()).get("jax", {})
        if not isinstance(kept, dict):
            raise ValueError(f"{path} is damaged: jax must hold settings of JAX; got {kept!r}")
        numerics.require_same(kept, f"the run in {self.path}")

    def go_on(self) -> None:
        """The run here goes on: its files stay as they are until `catch_up`.

        Raises:
          ValueError: its checkpoints are not there, as where their file system is away.
          OSError: whether they are is not known, since a file cannot be read.
        """
        self._is_behind = True
        if not self.checkpoints.epochs():
            self._require_none_written()

    def _require_none_written(self) -> None:
        path, every = self.path / "metrics.jsonl", self.read_config().checkpoint_every
        try:
            last = max((_epoch(line) for line in path.read_bytes().splitlines()), default=0)
        except FileNotFoundError:
            return
        except OSError as error:
            raise OSError(f"--resume {self.path} cannot be read: {reason(error)}") from error
        if every and last > every:
            raise ValueError(
                f"there is no checkpoint in {self.checkpoints.path}, though {path} tells of {last} "
                f"epochs with --checkpoint-every {every}: is a file system away? Nothing was changed; "
                f"to begin anew, name another directory by --out"
            )

    def begin(self, config: Config, provenance: Sequence[dict[str, Any]]) -> None:
        """The files of a run that starts."""
        self.write_config(config, provenance)
        self.write_metrics(())
        self._is_behind = False

    def catch_up(
        self,
        config: Config,
        provenance: Sequence[dict[str, Any]],
        metrics: Sequence[EpochMetrics],
    ) -> None:
        """Brings the files of a run that went on to where it is, once that is safe in a checkpoint.

        Epochs behind the checkpoint that it went on from are then as they were trained now.
        """
        if self._is_behind:
            if self._writes:  # a run that goes on has none yet
                (self.path / "result.json").unlink(missing_ok=True)
            self.write_config(config, provenance)
            self.write_metrics(metrics)
            self._is_behind = False

    def write_config(self, config: Config, provenance: Sequence[dict[str, Any]]) -> None:
        """All that reproduces the run, and on what it started and went on."""
        settings = dataclasses.asdict(config)
        content = {key: value for key, value in settings.items() if key not in _NOT_KEPT}
        started, *resumed = provenance
        content |= started | {"resumed": resumed, "jax": numerics.here()}
        self._write("config.json", strict_json.dumps(content, indent=2) + "\n")

    def write_metrics(self, metrics: Sequence[EpochMetrics]) -> None:
        """The lines of the epochs so far, in place of what was there."""
        lines = [strict_json.dumps(epoch.flat()) + "\n" for epoch in metrics]
        self._write("metrics.jsonl", "".join(lines))

    def append_metrics(self, metrics: EpochMetrics) -> None:
        """One line for an epoch; OSError where it cannot be written. None before `catch_up`."""
        if self._is_behind or not self._writes:
            return
        path = self.path / "metrics.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(strict_json.dumps(metrics.flat()) + "\n")
        except OSError as error:
            raise OSError(f"{path} cannot be written: {error.strerror}") from error

    def write_result(self, record: Record) -> None:
        """The run's record: the file is there, whole, only once the run has finished."""
        if self._writes:
            records.write(self.path / "result.json", record)

    def _write(self, name: str, text: str) -> None:
        if self._writes:
            write_whole(self.path / name, text)


def _epoch(line: bytes) -> int:
    """Reads the epoch of a line of metrics; 0 where it is torn."""
    try:
        return int(json.loads(line)["epoch"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0


_BEFORE_A_RUN = frozenset({LOCK, "config.json.partial"})  # all that one killed at its start left
_NOT_KEPT = frozenset({"out", "resume"})  # a directory may be moved
