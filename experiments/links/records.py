"""What was measured on links of a given rate, as files: one for each rate and protocol."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from experiments.common import numerics, strict_json
from experiments.common.files import write_whole
from experiments.runs.records import require_equal
from experiments.training.config import Config, completed

FORMAT = 1
"""Of the files: to be raised where their content changes its meaning."""


@dataclasses.dataclass(frozen=True)
class LinkRecord:
    """A training run, or its beginning, with each worker behind a link of its own.

    The first part of a run, in which connections are made, counts for the time to an accuracy only.
    """

    settings: dict[str, Any]  # of the run, the link's rate among them
    updates: int  # of the measured part
    seconds: float  # that these took, validation left out
    exchanges: int
    bytes_counted: list[float]  # by worker: from the rounds
    bytes_sent: list[float]  # by worker: by the kernel's counter of its interface
    bytes_framed: list[float] | None  # by worker: as a limited link counts, with every packet's headers
    samples: list[list[float]]  # since the start: updates, seconds, mean validation accuracy
    reached: list[float] | None  # updates and seconds at which the accuracy was that asked for
    provenance: dict[str, Any]

    @property
    def updates_per_second(self) -> float:
        """Counts those of the measured part."""
        return self.updates / self.seconds


def name_of(protocol: str, p: float | None, workers: int, width: int, rate: str) -> str:
    """A file's name, without its suffix; `p` where the protocol has one."""
    probability = "" if p is None else f"-p{p}"
    return f"{protocol}{probability}-W{workers}-width{width}-{rate}"


def settings(config: Config, rate: str, accuracy: float) -> dict[str, Any]:
    """All that decides a record: the run's settings but for its length, the rate, and what ends it."""
    of_run = config.settings() | numerics.unusual()
    del of_run["epochs"], of_run["validate_every"]
    return of_run | {"rate": rate, "accuracy": accuracy}


def write(path: Path, record: LinkRecord) -> None:
    """Writes a record; OSError, which names the file, where that fails."""
    content = {"format": FORMAT} | dataclasses.asdict(record)
    write_whole(path, strict_json.dumps(content, indent=1) + "\n")


def read(path: Path) -> LinkRecord:
    """Reads a record; ValueError, which names the file, where it is damaged or of another format."""
    try:
        content = json.loads(path.read_bytes())
        if content.pop("format") != FORMAT:
            raise ValueError("another format")
        content["settings"] = completed(content["settings"])
        return LinkRecord(**content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged, or of another version: move it elsewhere to have it measured again"
        ) from error


def read_expected(path: Path, settings: dict[str, Any]) -> LinkRecord:
    """Reads the record of a run with these settings; ValueError where it is of others."""
    record = read(path)
    require_equal(path, record.settings, settings)
    return record


def read_all(directory: Path) -> list[LinkRecord]:
    """All records in a directory of results."""
    return [read(path) for path in sorted((directory / "network").glob("*.json"))]
