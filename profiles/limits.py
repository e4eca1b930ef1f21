"""How much is taken from a user: sizes of files, depth, counts, numbers.

Each limit stands here once, with its unit, its reason, and the way beyond it where there is one; messages are made of
these words.

They keep any single input within about 5 s and 1 GiB before the work proper begins.
"""

from __future__ import annotations

from profiles.errors import InputError
from profiles.records import dataclass

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most `most` of `unit`, because of `reason`; `beyond` says what to do with more."""

    most: int
    unit: str
    reason: str
    beyond: str = ""

    @property
    def expected(self) -> str:
        """The limit in words, for a message."""
        beyond = f"; {self.beyond}" if self.beyond else ""
        return f"at most {self.most:,} {self.unit} ({self.reason}{beyond})"

    def error(self, amount: int | None = None, *, where: str, key: str | None = None) -> InputError:
        """Return the InputError about `amount` (None: more than was counted) at `where`."""
        counted = f"more than {self.most:,}" if amount is None else f"{amount:,}"
        return InputError(where=where, key=key, found=f"{counted} {self.unit}", expected=self.expected)

    def check(self, amount: int, *, where: str, key: str | None = None) -> None:
        """Raise InputError if `amount` is beyond the limit."""
        if amount > self.most:
            raise self.error(amount, where=where, key=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All limits, by name."""

    text_bytes: Limit = Limit(
        most=128 * MIB, unit="bytes in a file", reason="it is read into memory whole", beyond="split it"
    )
    checkpoint_bytes: Limit = Limit(
        most=GIB, unit="bytes in a checkpoint", reason="a million jobs take a tenth of that"
    )
    yaml_bytes: Limit = Limit(
        most=2 * MIB,
        unit="bytes in a YAML file",
        reason="YAML is read at about a MiB a second",
        beyond="nodes that are alike take one entry with a count",
    )
    toml_bytes: Limit = Limit(most=256 * KIB, unit="bytes in a TOML file", reason="a launcher's settings take some KiB")
    trace_bytes: Limit = Limit(
        most=2 * GIB,
        unit="bytes in a trace, unpacked",
        reason="a million jobs take some 200 MiB",
        beyond="split it by time",
    )
    unpacked_ratio: Limit = Limit(
        most=100,
        unit="bytes out of each byte of a gzip file",
        reason="tables pack 5 to 20 to one",
        beyond="unpack it first",
    )
    philly_bytes: Limit = Limit(
        most=256 * MIB, unit="bytes in a Philly trace", reason="JSON is read whole", beyond="split the list of jobs"
    )
    line_bytes: Limit = Limit(most=MIB, unit="characters in a line", reason="a row takes some hundreds")
    json_values: Limit = Limit(
        most=4_000_000, unit="values in a JSON file", reason="a plan of 131,072 ranks has 800,000", beyond="split it"
    )
    yaml_values: Limit = Limit(
        most=200_000,
        unit="values in a YAML file",
        reason="an alias counts as all that it stands for",
    )
    depth: Limit = Limit(most=64, unit="levels of lists and mappings", reason="no form of ours has more than 12")
    samples: Limit = Limit(
        most=2**20, unit="samples in a batch", reason="ten times the largest that anybody has trained with"
    )
    tokens: Limit = Limit(most=2**24, unit="tokens in a sample", reason="beyond the longest context of any model")
    vocabulary_multiple: Limit = Limit(
        most=2**20, unit="entries to pad a vocabulary by", reason="four times the largest vocabulary of any model"
    )
    device_types: Limit = Limit(
        most=64,
        unit="types of devices in a cluster",
        reason="plans compare them",
        beyond="plan for some of them at a time",
    )
    mixed_types: Limit = Limit(
        most=6,
        unit="types of devices in one search",
        reason="what a pipeline over several of them can be grows with each",
        beyond="leave some out of --cluster",
    )
    terms: Limit = Limit(
        most=128,
        unit="terms in a cluster's short form",
        reason="each is a kind of nodes of its own",
        beyond="nodes that are alike take one term with a count, or write a cluster file",
    )
    devices: Limit = Limit(
        most=2**18,
        unit="devices in a cluster",
        reason="each is a record; the largest training clusters have some 200,000",
    )
    nodes: Limit = Limit(
        most=50_000, unit="nodes in a list", reason="five times the largest cluster that a manager has"
    )
    cables: Limit = Limit(
        most=2**21,
        unit="cables between switches",
        reason="each is a record, parallel ones together; fabrics of 100,000 devices have some 300,000",
    )
    cables_by_name: Limit = Limit(
        most=200_000,
        unit="cables one by one",
        reason="each is a record; 3 s",
        beyond="parallel ones take one entry with a count, regular fabrics a kind of topology",
    )
    jobs: Limit = Limit(
        most=100_000, unit="jobs in a list", reason="they run at once; a manager's largest list has some ten thousand"
    )
    levels: Limit = Limit(most=16, unit="levels of switches above a node", reason="no fabric has more than five")
    store_bytes: Limit = Limit(
        most=GIB,
        unit="bytes in a profile store",
        reason="half a million measurements take that",
        beyond="a store for each device",
    )
    store_value_bytes: Limit = Limit(
        most=16 * MIB, unit="bytes in a value of a profile store", reason="a measurement takes some KiB"
    )
    steps: Limit = Limit(
        most=100_000,
        unit="steps of an iteration's pipeline",
        reason="each is an event that is simulated",
        beyond="fewer, larger micro-batches",
    )
    modules: Limit = Limit(
        most=20_000,
        unit="modules in a module",
        reason="each is traced operator by operator",
        beyond="a config.json describes large models",
    )
    seeds: Limit = Limit(most=10_000, unit="seeds", reason="each is a run", beyond="a sweep for each part of them")
    iterations: Limit = Limit(
        most=1_000_000, unit="iterations of a run", reason="each leaves its times and its loss in memory"
    )
    parameter_sets: Limit = Limit(
        most=1000, unit="parameter sets", reason="each is a training, and none of them is better by much then"
    )
    digits: Limit = Limit(most=18, unit="digits in a whole number", reason="sums leave 64 bits beyond")


LIMITS = Limits()
UNPACKED_FREELY_BYTES = 8 * MIB
"""So much comes out of a gzip file whatever its ratio: a short table of equal lines packs well."""
