"""Before any test module: eight CPU devices, strict promotion, and how XLA compiles and waits."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ["XLA_FLAGS"] = " ".join(
    [
        # A collective that waits for a worker that never comes aborts the process after a minute.
        "--xla_cpu_collective_call_terminate_timeout_seconds=60",
        # The tests compile much and compute little: they take half the time.
        "--xla_backend_optimization_level=0",
        os.environ.get("XLA_FLAGS", ""),  # comes last, and wins
    ]
)

import jax
import numpy as np
import pytest

jax.config.update("jax_num_cpu_devices", 8)
# Compiling is most of what the tests do: what one has compiled serves all, also of another process and
# in a later run. Commands that tests start share a cache of this session: a kill may leave torn files.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="gossip_jax-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
# Tests read the names of operations, too.
jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
jax.config.update("jax_compilation_cache_max_size", 2**30)  # a bound also has it take a lock
# float32 meeting bfloat16 must be an error, not a wider parameter.
jax.config.update("jax_numpy_dtype_promotion", "strict")
# A bias that meets a matrix by accident must be an error, too.
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Material that is not in the repository, in a folder beside the checkout."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not path.is_dir():
        pytest.skip(f"needs the folder of shared material, {path}")
    return path


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 4 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a file system")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def train_cli(monkeypatch, capsys, tmp_path):
    """Runs `python -m experiments.train` here, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")  # as conftest.py has made them

    def run_in_process(*arguments: str) -> tuple[int, str, str]:
        from experiments import train  # not before JAX has been set up above

        monkeypatch.setattr(sys, "argv", ["train", *arguments])
        try:
            train.main()
            code = 0
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 1
        return code, *capsys.readouterr()

    return run_in_process
