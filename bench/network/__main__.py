"""The network between nodes: what Crux observed beside ours, a cluster's two weeks played, how fast ways are found.

    python -m bench.network closed-form [--most 4096] [--bytes 1e9]
    python -m bench.network counters [--series 200] [--jitter 0.01]
    python -m bench.network events [--seed 0]
    python -m bench.network packets [--cases 30] [--seed 0]
    python -m bench.network observations --data DIR [--hashes 1000] [--seeds 5]
    python -m bench.network simgrid [--cases 200] [--python PYTHON]
    python -m bench.network speed [--runs 3]
    python -m bench.network lingjun --data DIR [--head N] [--collectives 1] [--mode exact|steady]

DIR holds `traces/crux_lingjun2023.csv.gz`. Each command says at its beginning what it takes and what is ours of it.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence

from bench.network import beside_simgrid, closed_form, counters, events, lingjun, observations, packets, speed
from estimator.host.cpu import cpu_name

COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "closed-form": closed_form.main,
    "counters": counters.main,
    "events": events.main,
    "lingjun": lingjun.main,
    "observations": observations.main,
    "packets": packets.main,
    "simgrid": beside_simgrid.main,
    "speed": speed.main,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables of one command."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] not in COMMANDS:
        print(__doc__)
        raise SystemExit(2)
    print(f"{cpu_name()}, {os.cpu_count()} cores, python {platform.python_version()}\n")
    COMMANDS[words[0]](words[1:])


if __name__ == "__main__":
    main()
