"""Commands of this checkout and of another one, each a process of its own, from modules that are compiled before."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parents[2]
PACKAGES = ("cellplan", "estimator", "models_zoo", "planner", "profiles")
WARM_UP = ("gpt-tiny", "--cluster", "h100:1x2", "--json")
"""A plan that takes no time: what it imports from elsewhere is compiled after it."""


class Failed(SystemExit):
    """A command that ended with an error."""


@dataclass(frozen=True)
class Ran:
    """A command that ran to its end: CPU seconds and peak memory of its process, and what it printed."""

    cpu_s: float
    peak_bytes: int
    text: str


@dataclass(frozen=True)
class Checkout:
    """A checkout of the project, and the folder in which its modules lie compiled; `most_s`: CPU seconds after which
    its commands are ended (None: never)."""

    tree: Path
    compiled: str
    most_s: int | None = None

    def run(self, *words: str) -> Ran | None:
        """Run a command, by the Python that runs this; None where it was ended. Failed where it fails."""
        return self._started("-m", "planner.cli.main", *words)

    def compile(self) -> None:
        """Compile its modules, and with a small plan what these import. They lie in no folder of the checkout: nothing
        that is there already is asked, whatever the environment says of writing compiled modules."""
        there = [package for package in PACKAGES if (self.tree / package).is_dir()]
        self._started("-m", "compileall", "-q", *there)
        self._started("-m", "planner.cli.main", "plan", *WARM_UP)

    def _started(self, *words: str) -> Ran | None:
        where = {**os.environ, "PYTHONPATH": str(self.tree), "PYTHONPYCACHEPREFIX": self.compiled}
        where.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, cwd=self.tree, env=where)
        if self.most_s is not None:
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (self.most_s, self.most_s + 5))
        assert process.stdout is not None
        text = process.stdout.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode == -signal.SIGXCPU:
            return None
        if process.returncode:
            raise Failed(f"{' '.join(words)} in {self.tree}: exit status {process.returncode}")
        return Ran(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, text)


@contextmanager
def compiled(tree: Path = HERE, *, most_s: int | None = None) -> Iterator[Checkout]:
    """A checkout whose commands start from compiled modules, as an installed package's do."""
    with TemporaryDirectory() as folder:
        Checkout(tree.resolve(), folder).compile()
        yield Checkout(tree.resolve(), folder, most_s)


class Least:
    """The least CPU seconds of a command in turns; one that was ended, or cannot be run by an older checkout, is not
    asked again."""

    def __init__(self, checkout: Checkout, words: Sequence[str]) -> None:
        self.checkout, self.words = checkout, words
        self.best_s, self.ended = float("inf"), ""
        self.last: Ran | None = None
        self.peak_bytes = 0

    def turn(self) -> None:
        """Run it once more."""
        if self.ended:
            return
        try:
            ran = self.checkout.run(*self.words)
        except Failed:
            if self.checkout.tree == HERE:
                raise
            self.ended = "cannot"
            return
        if ran is None:
            self.ended = f"over {self.checkout.most_s} s"
            return
        self.last, self.best_s = ran, min(self.best_s, ran.cpu_s)
        self.peak_bytes = max(self.peak_bytes, ran.peak_bytes)

    def __str__(self) -> str:
        return self.ended or f"{self.best_s:.2f} s"


def in_turn(ours: Checkout, theirs: Checkout | None, words: Sequence[str], repeats: int) -> tuple[Least, Least | None]:
    """Run a command in both checkouts in turn, so often in each."""
    both = Least(ours, words), None if theirs is None else Least(theirs, words)
    for _ in range(repeats):
        for each in both:
            if each is not None:
                each.turn()
    return both
