"""Every option of every command, each given what it does not take: the systematic part beside what chance finds."""

from __future__ import annotations

from collections.abc import Iterator

from bench.fuzz.cases import OptionCase
from bench.fuzz.examples import ONE, SMALL
from bench.fuzz.mutate import options_of

TINY_RUN = "run local.json --steps 1 --warm-up 0 --store out.sqlite"
COMMANDS: tuple[str, ...] = (
    "models list",
    "models show gpt-tiny",
    "hardware list",
    "hardware show a100-80gb",
    "hardware topology --cluster cluster.yaml -o out.conf",
    "network show cluster.yaml -o out.yaml",
    "contention contenders.yaml --cluster clos.yaml --timeline out.json --plot out.svg",
    "network paths cluster.yaml 0 1",
    "network probe clos.yaml n4 --source n1 --read traces.txt -o out.yaml",
    "network measure counters.csv",
    "profile gpt-tiny --store out.sqlite --budget 1",
    "comm measure --ranks 2 --sizes 1024,2048 --ops all_reduce --repeats 1 --store out.sqlite",
    "comm fit nccl.txt --link nvswitch3 --store out.sqlite",
    "comm show --store store.sqlite",
    f"estimate {ONE}",
    f"estimate {ONE} --tp 2 --pp 2 --global-batch 16",
    "estimate --plan plan.json",
    "estimate --from megatron @run.sh --cluster a100-80gb:1x8",
    f"plan {ONE} --global-batch 16",
    "place gpt-tiny --cluster cluster.yaml --devices 4 --global-batch 16 --types a100-80gb",
    "export plan.json --to megatron",
    TINY_RUN,
    "validate runs.csv",
    "jct train small.csv -o out.model",
    "jct predict jct.model small.csv",
    "jct evaluate small.csv --origins 1",
    SMALL,
    f"{SMALL} --seeds 0..1",
    "profiles export out.json --store store.sqlite",
    "profiles import profiles.json --store out.sqlite",
    "profiles show --store store.sqlite",
)
"""Command lines that mean something, each of which takes other options or does something else with them."""

WRONG: tuple[str, ...] = (
    "", " ", "0", "-1", "1.5", "nan", "inf", "1e999", "9" * 25, "1000003", "٣", "1_000", "a\nb", "nosuch", "x" * 300,
    "a,b", "1,1", "3:1", "x=y", "nodir/x", ".", "pipe", "/dev/zero", "unreadable", "--",
)  # fmt: skip
"""What stands in the place of a value: some option takes each of them, most do not."""


def option_cases() -> Iterator[OptionCase]:
    """Give each option of each command with each of the wrong values, and with none."""
    given = (
        (words, option, value)
        for words in (tuple(line.split()) for line in COMMANDS)
        for option, valued, choices in options_of(words[:2])
        if valued
        for value in (*WRONG, *choices[:1], None)
    )
    for number, (words, option, value) in enumerate(given):
        more = (option,) if value is None else (option, value)
        said = ("--json",) if number % 2 and "--json" not in words else ()
        yield OptionCase(
            name=f"options/{number}", words=(*words, *said, *more), files=(), option=option, value=value or ""
        )
