"""Runs in a tool's environment: python -m bench.exports.reader MODULE, with {"folder", "world", "dp"} as JSON on each
line of its input; answers each with a line of what MODULE's `read` says of the folder, or of what went wrong.
"""

from __future__ import annotations

import contextlib
import json
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    module = import_module(f"bench.exports.{sys.argv[1]}")
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        stubbed = module.prepare()
        versions = {name: version(name) for name in module.PACKAGES}
        for line in sys.stdin:
            task = json.loads(line)
            try:
                answer = module.read(Path(task["folder"]), task["world"], task["dp"])
            except (Exception, SystemExit) as error:  # whatever a tool raises is its verdict
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps({**answer, "versions": versions, "stubs": stubbed}), file=answers, flush=True)


if __name__ == "__main__":
    main()
