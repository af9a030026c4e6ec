"""One of several processes that only watch each other: `test_lifeline.py`.

Run as `python lifeline_process.py PROCESS PROCESSES PORT TIMEOUT WHAT`; prints "met" once all are
there, then, as WHAT says, leaves, fails, lives on, or meets the others.
"""

import sys
import time

from experiments.cluster import rendezvous
from experiments.cluster.lifeline import Lifeline


def main(process: int, processes: int, port: int, timeout: float, what: str) -> None:
    address = rendezvous.Address("localhost", port)
    met = rendezvous.meet(address, process, processes, {}, patience=60, timeout=timeout)
    lifeline = Lifeline(process, met.names, met.connections, timeout)
    print("met", flush=True)
    if what == "fail":
        lifeline.leave(reason="the disk is full")
        raise SystemExit(7)
    if what == "live":
        time.sleep(600)
    if what.startswith("meet"):  # after so many seconds; then is at something for so many
        _, late, busy = what.split()
        time.sleep(float(late))
        found = lifeline.meet("the first epoch", process, limit=2 * timeout)
        print(found, flush=True)
        time.sleep(float(busy))
        lifeline.meet("the end of it", patience=60, limit=60)
    lifeline.leave()


if __name__ == "__main__":
    first, count, at, seconds, then = sys.argv[1:]
    main(int(first), int(count), int(at), float(seconds), then)
