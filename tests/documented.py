"""The commands that README and the pages of `docs/` print, run, and what they print held beside what the page shows.

A page's block shows a command after `$ ` with its output below, in which a line `...` stands for any lines; a line that
begins with `cellplan` is a command without output. A fenced block with a file's name after its language, as in
```yaml jobs.yaml, is that file, which the page's commands find. Commands run in a folder that has the repository's
`examples` in it (those of the folder of the page's name before others), and `bench`, `models_zoo`, `planner` and
`profiles` beside them; one after another.

    python -m tests.documented [PAGE ...]    write what commands print now where the lines of a page are the same but
                                             for their figures, and show what has to be mended by hand
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from planner.cli.main import main
from profiles.records import dataclass
from tests.imports import ROOT

BESIDE = ("bench", "models_zoo", "planner", "profiles")
ANY = "..."
NEAR = 0.02
"""A printed figure may differ by so much of itself: estimates move a little when parameters are fitted anew."""

OWN_FILES = {
    "JOBS": "a list of jobs of the reader's",
    "TRACE": "a trace of the reader's",
    "TRACE.csv": "a trace of the reader's",
    "RUNS.csv": "runs of the reader's",
    "RUNS.txt": "output of nccl-tests of the reader's",
    "C": "a cluster file of the reader's",
    "P": "a plan of the reader's",
    "HOST": "hosts of the reader's",
}
"""Arguments that stand for something of the reader's, with what."""

APART = {
    r"\bserve\b": "a server, which goes on: tests/planner/cli and tests/planner/report drive it",
    r"\bnetwork probe\b": "asks a real network: bench/testbed/fabric",
    r"\bprofile (?!show)": "measures this machine: `make demo`, tests/estimator/profiling",
    r"\bcomm measure\b": "measures this machine: `make demo`, tests/estimator/communication",
    r"(^|\s)run \S+\.json": "trains on this machine: `make demo`, tests/planner/one_job/running",
    r"local:": "rests on what was measured on this machine: `make demo`",
    r"--report": "explains by some thirty searches: tests/planner/report",
    r"--policies fcfs,easy-backfill,crius,marginal --seeds": "takes 15 s: bench.scheduling",
    r"deepseek-v3": "takes 6 s: bench.planning",
    r"--largest seq-len": "takes 5 s: tests/planner/one_job/planning",
    r"package\.module:": "stands for a module of the reader's",
}
"""Commands that no test of the pages runs, by a pattern, with the reason; their arguments are parsed all the same."""

OF_THE_READER = ("contention.md", "contention-settings.md")
"""Pages that name files which they show in part: their commands run where all of their files are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A command of a page: its words (without `cellplan`), the line that it stands on from 1, the lines of its output
    as the page has them (None: no output is shown) with the number of the first, and how far these are indented."""

    page: Path
    words: tuple[str, ...]
    line: int
    output: tuple[str, ...] | None = None
    output_line: int = 0
    indent: str = ""

    @property
    def text(self) -> str:
        """The command as typed."""
        return shlex.join(self.words)

    @property
    def apart(self) -> str | None:
        """Why no test of the pages runs it; None where one does."""
        for word in self.words:
            if word in OWN_FILES:
                return f"{word}: {OWN_FILES[word]}"
        return next((why for pattern, why in APART.items() if re.search(pattern, " ".join(self.words))), None)

    @property
    def lacks(self) -> str | None:
        """Which file of the reader's a command lacks in this folder, on a page that shows its files in part."""
        named = (word for word in self.words if re.search(r"\.(ya?ml|json|txt|csv)$", word))
        missing = [word for word in named if not Path(word).exists()]
        return missing[0] if self.page.name in OF_THE_READER and missing else None


def pages() -> list[Path]:
    """README, CONTRIBUTING and every page of the documentation that people write."""
    written = sorted(path for path in (ROOT / "docs").rglob("*.md") if "reference_pages" not in path.parts)
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(path for path in written if "_build" not in path.parts)]


def blocks(text: str) -> Iterator[tuple[str, int, list[str]]]:
    """Yield the blocks of code of a page: what stands after the fence, the number of the first line, the lines as they
    stand. Indented blocks have an empty first part."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        fence = re.match(r"(\s*)```+(.*)$", lines[at])
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip().startswith("```"))
            yield fence[2].strip(), at + 2, lines[at + 1 : end]
            at = end + 1
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            while not lines[end - 1].strip():
                end -= 1
            yield "", at + 1, lines[at:end]
            at = end
        else:
            at += 1


def files_of(text: str) -> dict[str, str]:
    """Return the files that a page shows, by name."""
    found = {}
    for info, _, lines in blocks(text):
        name = info.split()[1:2]
        if name and re.fullmatch(r"[\w.-]+\.\w+", name[0]):
            found[name[0]] = "\n".join(lines) + "\n"
    return found


def commands_of(page: Path) -> Iterator[Shown]:
    """Yield the commands of a page in the order in which they stand."""
    text = page.read_text(encoding="utf-8")
    for info, first, lines in blocks(text):
        if info.split()[:1] not in ([], ["console"], ["bash"], ["sh"]):
            continue
        at = 0
        while at < len(lines):
            start, indent = at, re.match(r"\s*", lines[at])[0]  # type: ignore[index]
            typed = lines[at].strip()
            while typed.endswith("\\") and at + 1 < len(lines):
                at += 1
                typed = f"{typed[:-1]} {lines[at].strip()}"
            at += 1
            shown = typed.startswith("$ ")
            ours = [part for part in _parts(typed.removeprefix("$ ")) if part[:1] == ["cellplan"]]
            if shown:
                end = next((i for i in range(at, len(lines)) if lines[i].strip().startswith("$ ")), len(lines))
                output, output_line, at = tuple(lines[at:end]), first + at, end
                while output and not output[-1].strip():
                    output = output[:-1]
            for number, part in enumerate(ours):
                last = shown and number == len(ours) - 1
                yield Shown(
                    page=page,
                    words=tuple(part[1:]),
                    line=first + start,
                    output=output if last and output else None,
                    output_line=output_line if last else 0,
                    indent=indent,
                )


def _parts(typed: str) -> list[list[str]]:
    """The commands of a line, as words; none of what is no command line."""
    if not re.search(r"(^|\s)cellplan\s", typed) or typed.startswith(("#", ">>>")):
        return []
    # What a page puts into brackets may be left out.
    words = [
        word.strip("[]") if re.fullmatch(r"\[-.*|.*\]", word) else word for word in shlex.split(typed, comments=True)
    ]
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", ";", "|"):
            parts.append([])
        else:
            parts[-1].append(word)
    return [part[: part.index(">")] if ">" in part else part for part in parts]


_DONE: dict[tuple[object, ...], tuple[int, str, bytes | None]] = {}
"""The exit status of commands that ran, what they printed, and the file that they wrote, by their words and the files
that they name."""


def run(words: Sequence[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit status and what it printed, errors too. The same command on the
    same files runs once; one that keeps a store, or writes several files, each time."""
    target = Path(words[words.index("-o") + 1]) if "-o" in words[:-1] else None
    each_time = {"--store", "--timeline", "--plot", "--report", "--jobs-csv"} & set(words)
    read = (Path(word.lstrip("@")) for word in words)
    key = (*words, *(path.read_bytes() for path in read if path != target and path.is_file()))
    if key not in _DONE or each_time:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            status = main(list(words))
        written = target.read_bytes() if target is not None and target.is_file() else None
        _DONE[key] = status, printed.getvalue(), written
    status, text, content = _DONE[key]
    if target is not None and content is not None:
        target.write_bytes(content)
    return status, text


@contextlib.contextmanager
def folder_of(page: Path, folder: Path) -> Iterator[None]:
    """Work in `folder`, which gets the examples, the files that a page shows, and the repository's packages."""
    folder.mkdir(exist_ok=True)
    examples = ROOT / "examples"
    for source in (examples, examples / page.stem):
        if source.is_dir() and page.name not in OF_THE_READER:
            shutil.copytree(source, folder, dirs_exist_ok=True)
    for name in BESIDE:
        (folder / name).symlink_to(ROOT / name)
    for name, content in files_of(page.read_text(encoding="utf-8")).items():
        (folder / name).write_text(content, encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def shape_of(line: str) -> str:
    """A printed line with every figure as #, every gap as one blank."""
    return re.sub(r"[─ ]*─[─ ]*", "─", re.sub(r"\s+", " ", NUMBER.sub("#", line.strip())))


def have_one_shape(expected: str, printed: str) -> bool:
    """Whether two lines differ in figures alone, and in what the page leaves out."""
    if ANY in expected and ANY not in printed:
        pieces = map(re.escape, (shape_of(piece) for piece in expected.split(ANY)))
        return re.fullmatch(".*".join(pieces), shape_of(printed)) is not None
    return shape_of(expected) == shape_of(printed)


def are_alike(expected: str, printed: str) -> bool:
    """Whether two lines have the same shape, and figures near each other."""
    if not have_one_shape(expected, printed):
        return False
    if ANY in expected:
        return True
    pairs = zip(NUMBER.findall(expected), NUMBER.findall(printed), strict=True)
    return all(_near(*(float(number.replace(",", "")) for number in pair)) for pair in pairs)


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= max(NEAR * max(abs(one), abs(other)), 0.11 if max(abs(one), abs(other)) < 10 else 1.01)


def matched(
    expected: Sequence[str], printed: Sequence[str], alike: Callable[[str, str], bool] = are_alike
) -> list[int | None] | None:
    """Return for each line that a page shows the number of the printed line that it stands for (None: of `...` and
    empty lines), or None where they do not follow each other so."""
    lines = [number for number, line in enumerate(printed) if line.strip()]
    runs: list[list[int]] = [[]]
    for number, line in enumerate(expected):
        if line.strip() == ANY:
            runs.append([])
        elif line.strip():
            runs[-1].append(number)
    free = expected[0].strip() == ANY
    places: dict[int, int] = {}
    at = 0
    for position, run_of in enumerate(runs):
        starts = range(at, len(lines) - len(run_of) + 1) if position or free else [at]
        start = next(
            (s for s in starts if all(alike(expected[n], printed[lines[s + i]]) for i, n in enumerate(run_of))), None
        )
        if start is None or start + len(run_of) > len(lines):
            return None
        places |= {n: lines[start + i] for i, n in enumerate(run_of)}
        at = start + len(run_of)
    if expected[-1].strip() != ANY and at != len(lines):
        return None
    return [places.get(number) for number in range(len(expected))]


def _write_anew(page: Path) -> bool:
    """Run a page's commands and write their figures into it; return whether all were as shown but for figures."""
    text = page.read_text(encoding="utf-8")
    lines, well = text.splitlines(), True
    with tempfile.TemporaryDirectory() as folder, folder_of(page, Path(folder)):
        for shown in commands_of(page):
            if shown.apart or shown.lacks:
                continue
            status, printed = run(shown.words)
            if shown.output is None:
                if status:
                    well = False
                    print(f"{page}:{shown.line}: {shown.text}: exit {status}\n{printed}")
                continue
            out = printed.splitlines()
            places = matched(shown.output, out, have_one_shape)
            if places is None:
                well = False
                print(f"{page}:{shown.line}: {shown.text}: prints now\n" + "\n".join(out[:60]))
                continue
            for number, place in enumerate(places):
                if place is not None and ANY not in shown.output[number]:
                    lines[shown.output_line + number - 1] = (shown.indent + out[place]).rstrip()
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return well


if __name__ == "__main__":
    os.environ["CELLPLAN_STORE"] = str(Path(tempfile.gettempdir()) / "cellplan-documented-no-store.sqlite")
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or pages()
    well = [_write_anew(page) for page in chosen]
    sys.exit(not all(well))
