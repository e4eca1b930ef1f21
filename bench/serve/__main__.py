"""Hostile requests to `cellplan serve`, and the time of a good one.

    python -m bench.serve --requests 500 --seed 0   # a table by kind, and a line for each that went wrong
    python -m bench.serve --case 17                 # one request, and its answer

The server runs in this process, in a folder with bait: code that leaves a mark where it is run, pipes on which whoever
opens them waits for ever. Afterwards a good request is still answered, nothing lies in the folder, no connection and no
thread is left.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import threading
import time
from collections.abc import Sequence

from bench.serve.hostile import Target, make_request
from bench.serve.judge import bait, by_kind, cpu_s, good_request, judge, left_behind, send, serving
from planner.shared.options.serve import ServeOptions

GOOD_TIMES = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Send the requests; return 1 if anything went wrong."""
    parser = argparse.ArgumentParser(prog="bench.serve", description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="this request alone")
    arguments = parser.parse_args(argv)
    # An estimate may take so long: what a config asks for is bounded by the server's own limit.
    with bait() as folder, serving(ServeOptions(call_limit=10.0)) as server:
        target = Target(port=server.server_address[1], token=server.token)
        if arguments.case is not None:
            request = make_request(arguments.case, arguments.seed, target)
            print(request.kind, [piece[:2000] for piece in request.pieces[:3]])
            print(send(request, target)[:3000].decode("utf-8", "replace"))
            return 0
        before = threading.active_count()
        cold_s = good_request(target)
        answers = [
            judge(number, make_request(number, arguments.seed, target), target) for number in range(arguments.requests)
        ]
        good_request(target)
        begun_s = cpu_s()
        warm = [good_request(target) for _ in range(GOOD_TIMES)]
        warm_cpu_s = (cpu_s() - begun_s) / GOOD_TIMES
        time.sleep(1.0)
        threads = threading.active_count() - before
        found = left_behind(folder)
    print(f"{platform.platform()}, Python {platform.python_version()}, seed {arguments.seed}")
    for kind, count, statuses, longest_s, wrong in by_kind(answers):
        print(f"{kind:15} {count:4}  longest {longest_s:5.2f} s  wrong {wrong}  {statuses}")
    bad = [answer for answer in answers if answer.wrong]
    for answer in bad:
        print(f"request {answer.number} ({answer.kind}): {'; '.join(answer.wrong)}")
    print(
        f"{len(answers)} requests, {len(bad)} wrong; left in the folder: {found or 'nothing'}; threads more: {threads}"
    )
    said = f"median {statistics.median(warm):.3f} s, longest {max(warm):.3f} s of {len(warm)}"
    said += f"; CPU seconds of each {warm_cpu_s:.3f}"
    print(f"a good estimate, wall: cold {cold_s:.2f} s; warm, after all of them: {said}")
    return 1 if bad or found else 0


if __name__ == "__main__":
    raise SystemExit(main())
