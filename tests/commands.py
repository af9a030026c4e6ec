"""Runs the commands of the experiments as processes of their own, and stops them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu"}
PATIENCE = 400  # seconds, for processes that may share one core with much else


def run_module(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m experiments.MODULE` to its end."""
    return subprocess.run(
        [sys.executable, "-m", f"experiments.{module}", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def start_module(module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"experiments.{module}", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stop_module(
    module: str, *arguments: str, signals: tuple[int, ...], when: Callable[[], bool]
) -> tuple[int, str, str]:
    """Starts it, and sends it signals in turn once it is time: its exit code and what it showed."""
    started = start_module(module, *arguments)
    try:
        wait_for(lambda: when() or started.poll() is not None)
        for number in signals:
            started.send_signal(number)
            time.sleep(0.2)
        shown, message = started.communicate(timeout=PATIENCE)
    finally:
        started.kill()
        started.wait()
    return started.returncode, shown, message


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
