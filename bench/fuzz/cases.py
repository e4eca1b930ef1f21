"""One case of the fuzzer: an example spoilt by a seed and a number, always in the same way."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.fuzz.examples import all_examples
from bench.fuzz.mutate import spoil_file, spoil_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command line, and the files that are not as the examples have them."""

    name: str
    words: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...]

    @property
    def command(self) -> str:
        """The command as a shell takes it."""
        return shlex.join(("cellplan", *self.words))


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCase(Case):
    """A case of one option; what is said against it must name the option, or what was given to it."""

    option: str
    value: str


def make_case(folder: Path, seed: int, number: int) -> Case:
    """Return case `number` of `seed`, with the examples' files in `folder`."""
    rng = Random(f"{seed}/{number}")
    examples = all_examples()
    (example,) = rng.choices(examples, weights=[example.weight for example in examples])
    words, files = example.words, tuple[tuple[str, bytes], ...]()
    spoils_files = example.files and rng.random() < 0.7
    if spoils_files:
        names = [name for name in example.files if rng.random() < 0.8] or [rng.choice(example.files)]
        files = tuple((name, spoil_file(name, (folder / name).read_bytes(), rng)) for name in names)
    if not spoils_files or rng.random() < 0.2:
        words = spoil_words(words, rng)
    if number % 2 and words and "--json" not in words:  # every other one is asked for a document
        words = (*words, "--json")
    return Case(name=f"{seed}/{number}", words=words, files=files)
