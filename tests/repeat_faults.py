"""Faults as real processes and files, many times: `python -m tests.repeat_faults ITEM TIMES`.

ITEM is "files" (a run whose files cannot be read goes on once they can), "settings" (processes with
other settings of JAX) or "late" (processes that are late for each other). Prints a line for each time,
and exits with 1 where something hung, was lost, or was not named. As root, on Linux, with a Python that
the user nobody may run.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments.cluster.lifeline import PEER_LOST
from experiments.cluster.rendezvous import free_port

ROOT = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",
    "HOME": "/tmp",
}
NOBODY: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": ()}
HANGS = 1800  # seconds, after which a process is taken to
RUN = ["--width", "8", "--epochs", "3", "--p", "0.5", "--backend", "vmap"]
SLOW = (
    "import time; from experiments import train; from experiments.tasks import data\n"
    "load = data.load\n"
    "data.load = lambda *given: (time.sleep({seconds}), load(*given))[1]\n"
    "train.main()"
)


def train(*arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.train", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=HANGS, **how
    )


def contents(directory: Path) -> dict[str, Any]:
    """All that a run holds, but for its lock."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
        if path.name != ".lock" and not path.is_symlink()
    }


def figures(out: Path) -> dict[str, Any]:
    """Of the result, without the time it took."""
    found = json.loads((out / "result.json").read_text())["result"]
    return {name: value for name, value in found.items() if name != "updates_per_second"}


@contextlib.contextmanager
def without_permission(path: Path) -> Iterator[str]:
    mode = path.stat().st_mode
    path.chmod(0)
    yield "Permission denied"
    path.chmod(mode)


@contextlib.contextmanager
def broken(path: Path) -> Iterator[str]:
    whole = path.with_name("whole")
    path.rename(whole)
    path.symlink_to("/proc/self/mem")  # of which no byte can be read
    yield "Input/output error"
    path.unlink()
    whole.rename(path)


@contextlib.contextmanager
def unmounted(path: Path) -> Iterator[str]:
    store = path.parent.parent / "store"
    path.rename(store)
    path.mkdir()
    subprocess.run(["mount", "--bind", store, path], check=True)
    subprocess.run(["umount", path], check=True)
    yield "is a file system away?"
    path.rmdir()
    store.rename(path)


@contextlib.contextmanager
def dangling(path: Path) -> Iterator[str]:
    store = path.parent.parent / "store"
    path.rename(store)
    path.symlink_to("/mnt/away")
    yield "No such file or directory"
    path.unlink()
    store.rename(path)


@contextlib.contextmanager
def full(path: Path) -> Iterator[str]:
    """The run's last checkpoint is damaged, so that it is to write one; where it is is full."""
    (path / "3" / "_METADATA").write_bytes(b"torn")
    ballast = path.parent.parent / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    yield "cannot be written"
    ballast.unlink()


FAULTS: list[tuple[str, Callable[[Path], contextlib.AbstractContextManager[str]]]] = [
    ("checkpoints without permission", lambda out: without_permission(out / "checkpoints")),
    ("a checkpoint without permission", lambda out: without_permission(out / "checkpoints" / "3")),
    (
        "a file without permission",
        lambda out: without_permission(out / "checkpoints" / "3" / "_METADATA"),
    ),
    ("a file with an I/O error", lambda out: broken(out / "checkpoints" / "3" / "_METADATA")),
    ("checkpoints that are not mounted", lambda out: unmounted(out / "checkpoints")),
    ("checkpoints behind a dangling link", lambda out: dangling(out / "checkpoints")),
    ("a full file system", lambda out: full(out / "checkpoints")),
]


def files(times: int) -> Iterator[tuple[str, bool, str]]:
    """A run of nobody's stops with the reason, changes nothing, and then goes on to its end."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o777)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=777", "none", place], check=True)
    try:
        whole, out = place / "whole", place / "run"
        done = train(*RUN, "--out", str(whole), **NOBODY)
        assert done.returncode == 0, done.stderr
        for number in range(times):
            what, fault = FAULTS[number % len(FAULTS)]
            shutil.rmtree(out, ignore_errors=True)
            subprocess.run(["cp", "-a", whole, out], check=True)
            (out / "result.json").unlink()
            with fault(out) as says:
                before = contents(out)
                stopped = train("--resume", str(out), **NOBODY)
                is_unchanged = contents(out) == before
            again = train("--resume", str(out), **NOBODY)
            holds = (stopped.returncode, again.returncode) == (2, 0) and says in stopped.stderr
            holds = holds and is_unchanged and "damaged" not in stopped.stderr
            holds = holds and figures(out) == figures(whole)
            yield what, holds, stopped.stderr.strip()
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
        place.rmdir()


def start(
    out: Path, processes: int, odd: list[str], variables: dict[str, str], *arguments: str
) -> list["subprocess.Popen[str]"]:
    """Processes that train as one, of which process 1 is begun as `odd`, with variables of its own."""
    place = ["--coordinator", f"localhost:{free_port()}", "--num-processes", str(processes)]
    batch = ["--workers", str(processes), "--batch-size", str(32 * processes), "--width", "16"]
    rest = [*batch, *place, *arguments, "--out", str(out), "--process-id"]
    begun = [odd if number == 1 else ["-m", "experiments.train"] for number in range(processes)]
    return [
        subprocess.Popen(
            [sys.executable, *begun[number], *rest, str(number)],
            cwd=ROOT,
            env=ENVIRONMENT | (variables if number == 1 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]


def end(started: list["subprocess.Popen[str]"]) -> tuple[list[int], list[str]]:
    """Exit codes and messages; a process that hangs is killed, with code -9."""
    deadline, said = time.monotonic() + HANGS, list[str]()
    for process in started:
        try:
            _, message = process.communicate(timeout=max(deadline - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            process.kill()
            _, message = process.communicate()
        said.append("\n".join(line for line in message.splitlines() if line.startswith("error: ")))
    return [process.returncode for process in started], said


def settings(times: int) -> Iterator[tuple[str, bool, str]]:
    """One of two processes has another setting: both say which, and end."""
    variables = [
        {"JAX_THREEFRY_PARTITIONABLE": "0"},
        {"JAX_ENABLE_X64": "1"},
        {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
    ]
    with tempfile.TemporaryDirectory() as place:
        for number in range(times):
            of_one = variables[number % len(variables)]
            (name,) = of_one
            out = Path(place, str(number))
            odd = ["-m", "experiments.train"]
            codes, said = end(start(out, 2, odd, of_one, "--peer-timeout", "20"))
            holds = codes == [2, 2] and all(name.lower() in message for message in said)
            yield f"{name} in one of two", holds and not out.exists(), said[0]


def late(times: int) -> Iterator[tuple[str, bool, str]]:
    """One of three comes late to the first contact, or stops within the run: waited for, or named."""
    epochs = ["--p", "0.01", "--epochs", "30"]
    normal = ["-m", "experiments.train"]
    with tempfile.TemporaryDirectory() as place:
        for number in range(times):
            out, kind = Path(place, str(number)), number % 4
            if kind == 0:
                started = start(
                    out, 3, ["-c", SLOW.format(seconds=35)], {}, *epochs, "--peer-timeout", "90"
                )
                what, wanted = "loads for 35 s, --peer-timeout 90", [0, 0, 0]
            elif kind == 1:
                started = start(
                    out, 3, ["-c", SLOW.format(seconds=600)], {}, *epochs, "--peer-timeout", "10"
                )
                what, wanted = "loads for 600 s, --peer-timeout 10", [PEER_LOST] * 3
            else:
                timeout = "90" if kind == 2 else "10"
                started = start(out, 3, normal, {}, *epochs, "--peer-timeout", timeout)
                while not (out / "checkpoints" / "1").exists() and started[1].poll() is None:
                    time.sleep(0.01)
                started[1].send_signal(signal.SIGSTOP)
                time.sleep(35)
                started[1].send_signal(signal.SIGCONT)
                what = f"stops for 35 s, --peer-timeout {timeout}"
                wanted = [0, 0, 0] if kind == 2 else [PEER_LOST] * 3
            codes, said = end(started)
            names = [message for message in said if "process 1 (host" in message]
            holds = codes == wanted and (bool(names) if any(wanted) else not any(said))
            yield what, holds, f"{codes} {said[0]}"


def main(item: str, times: int) -> None:
    failed = 0
    for number, (what, holds, said) in enumerate(
        {"files": files, "settings": settings, "late": late}[item](times), 1
    ):
        failed += not holds
        print(f"{number} {'ok' if holds else 'FAILED'}: {what}: {said}", flush=True)
    print(f"{item}: {times - failed} of {times} ok", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
