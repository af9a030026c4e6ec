"""Whatever one hands over, the commands end with a message, in time, and lose nothing."""

import contextlib
import dataclasses
import faulthandler
import json
import shutil
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutations import mutated, mutated_bytes

from experiments import train
from experiments.common.cli import flag
from experiments.runs import records
from experiments.tables import rows
from experiments.tasks import data
from experiments.training import run
from experiments.training.config import Config
from experiments.training.program import Programs

RUN = ["--width", "8", "--epochs", "2", "--backend", "vmap"]
HANG = 120  # seconds after which an input counts as one that hangs: the process is then ended
ODD_ARGUMENTS = [
    "",
    " ",
    "-1",
    "0",
    "1",
    "2",
    "7",
    "1e400",
    "nan",
    "-inf",
    "9" * 40,
    "0.5",
    "1_0",
    "0x10",
]
ODD_ARGUMENTS += [
    "é",
    "a b",
    "\udcff",
    "--",
    "-",
    "None",
    "true",
    "[1]",
    "../..",
    "/",
    "x" * 300,
    "file",
]
ODD_ARGUMENTS += ["file/below", "/proc/nothing", "a\nb", "%s", "{}", "$(id)", "*", "4294967296"]


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


@pytest.fixture(autouse=True)
def compile_once(programs, monkeypatch) -> None:
    monkeypatch.setattr(run, "Programs", lambda _: programs)


@pytest.fixture(scope="module")
def programs(digits) -> Programs:
    return Programs(digits)


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    faulthandler.dump_traceback_later(HANG, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def ends(monkeypatch, capsys, tmp_path) -> Callable[..., int]:
    """Runs `python -m experiments.train` here: its exit code, 0 or 2; anything else fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
    (tmp_path / "file").write_text("content")

    def end(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["train", *arguments])
        code = 0
        with in_time():
            try:
                train.main()
            except SystemExit as exit:
                code = exit.code
        shown, message = capsys.readouterr()
        assert code in (0, 2), (arguments, code, message)
        assert "Traceback" not in shown + message, arguments
        assert (code == 2) == bool(message), (arguments, message)
        assert (tmp_path / "file").read_text() == "content", arguments
        return code

    return end


def contents(directory: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def refusal(function: Callable[..., Any], *arguments: Any) -> str | None:
    """What a ValueError says, which is the only one there may be; None without one."""
    with in_time():
        try:
            function(*arguments)
        except ValueError as error:
            return str(error)
    return None


def odd_arguments(rng: np.random.Generator) -> list[str]:
    """Settings, half of them with a value that their type or `Literal` has, half with any."""
    kinds = typing.get_type_hints(Config)
    fields = [field.name for field in dataclasses.fields(Config)]
    arguments = []
    for name in rng.choice(fields, int(rng.integers(1, 5)), replace=False):
        choices = [str(choice) for choice in typing.get_args(kinds[name]) if isinstance(choice, str)]
        value = rng.choice(choices if choices and rng.random() < 0.5 else ODD_ARGUMENTS)
        arguments += [flag(name), str(value)] if rng.random() < 0.9 else [flag(name)]
    return arguments


@pytest.mark.slow
def test_200_odd_command_lines_end_with_a_message(ends, monkeypatch):
    """Nothing is trained: what is wrong must be found before."""

    def begun(*_: Any) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(train, "begin", begun)
    codes = []
    for seed in range(200):
        arguments = odd_arguments(np.random.default_rng(seed))
        codes.append(ends(*RUN, *arguments))
    assert 0.3 < np.mean(codes) / 2 < 1, "both good and bad ones are to be tried"


@pytest.fixture(scope="module")
def finished(tmp_path_factory, digits, programs) -> Path:
    """The directory of a run of two epochs."""
    path = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "Programs", lambda _: programs)
        patched.setenv("JAX_NUM_CPU_DEVICES", "8")
        patched.setattr(sys, "argv", ["train", *RUN, "--out", str(path)])
        train.main()
    return path


@pytest.mark.slow
def test_100_damaged_configs_end_with_a_message_or_resume(ends, finished, monkeypatch, tmp_path):
    # What a sound one is then trained with is other tests' matter.
    monkeypatch.setattr(train, "train", lambda *_: sys.exit(0))
    whole, codes = (finished / "config.json").read_bytes(), []
    for seed in range(100):
        path = tmp_path / f"é {seed}"
        shutil.copytree(finished, path)
        (path / "result.json").unlink()
        (path / "config.json").write_bytes(mutated(np.random.default_rng(seed), whole))
        before = contents(path)
        codes.append(ends("--resume", str(path)))
        if codes[-1] == 2:
            assert contents(path) == before, seed
        shutil.rmtree(path)
    assert 0 < np.mean(codes) < 2, "both kinds are to be tried"


@pytest.mark.slow
def test_60_damaged_checkpoints_are_passed_over(ends, finished, tmp_path):
    for seed in range(60):
        rng, path = np.random.default_rng(seed), tmp_path / f"run {seed}"
        shutil.copytree(finished, path)
        (path / "result.json").unlink()
        files = sorted(p for p in (path / "checkpoints").rglob("*") if p.is_file())
        for file in rng.choice(np.array(files, object), int(rng.integers(1, 4))):
            file.write_bytes(mutated_bytes(rng, file.read_bytes()))
        assert ends("--resume", str(path)) == 0, seed
        again, whole = contents(path), contents(finished)
        assert again.keys() >= {Path("config.json"), Path("metrics.jsonl"), Path("result.json")}
        assert (
            again[Path("result.json")].split(b'"updates"')[0]
            == (whole[Path("result.json")].split(b'"updates"')[0])
        ), "from whichever checkpoint it went on, or from the start, it is the same run"
        shutil.rmtree(path)


def test_500_damaged_tables_are_refused_or_sound():
    texts = [(rows.DIRECTORY / f"{name}.toml").read_bytes() for name in rows.names()]
    refused = 0
    for seed in range(500):
        rng = np.random.default_rng(seed)
        text = mutated_bytes(rng, texts[seed % len(texts)]).decode("utf-8", "replace")
        if why := refusal(rows.parse, "fuzz", text):
            assert "table fuzz" in why, seed
            refused += 1
    assert refused > 100


def test_300_damaged_records_are_refused(tmp_path):
    root = Path(__file__).parents[1] / "results" / "runs"
    whole = min(root.rglob("*.json"), key=lambda path: path.stat().st_size).read_bytes()
    path = tmp_path / "seed-0.json"
    path.write_bytes(whole)
    records.read(path)
    for seed in range(300):
        content = mutated(np.random.default_rng(seed), whole)
        path.write_bytes(content)
        if why := refusal(records.read, path):
            assert str(path) in why, seed
        else:
            assert json.loads(content) == json.loads(whole), seed


def test_60_damaged_descriptions_of_datasets_are_refused_or_sound(shared, monkeypatch, tmp_path):
    source = shared / "data" / "tfds" / "mnist" / "3.0.1"
    target = tmp_path / "mnist" / "3.0.1"
    target.mkdir(parents=True)
    for file in source.iterdir():
        (target / file.name).symlink_to(file)
    # The examples themselves: test_data.py damages those.
    monkeypatch.setattr(data, "_read", lambda builder, split: builder.info.splits[split].num_examples)
    refused = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        name = ("dataset_info.json", "features.json")[seed % 2]
        (target / name).unlink()
        (target / name).write_bytes(mutated(rng, (source / name).read_bytes()))
        if why := refusal(data.load, "mnist", tmp_path):
            assert "mnist" in why, seed
            assert "--data-dir" in why, seed
            refused += 1
        (target / name).unlink()
        (target / name).symlink_to(source / name)
    assert refused > 10
