"""How far modelled collectives are from the published ones, by kind of link or device; which rows each parameter has.

    python -m bench.accuracy.collectives --data DIR [--fit] [--rows] [--against LINKS.toml]

from the root of the repository; DIR holds comm.csv (its columns: id, source, path_or_url, gpu, topology, gpus, nodes,
op, bytes, time_us, busbw_gbps, algbw_gbps, software, notes; bytes as nccl-tests counts them, bus bandwidth in GB/s) and
kernels/comm.csv.gz (curves of nccl-tests in a node). Rows of the first are split in half by the hash of their id,
whole curves of the second 7 to 3 by the hash of device, operation and ranks: parameters may rest on the fit part alone.
`--fit` fits them anew (needs scipy) and prints the errors with that; the catalogue, profiles/data/links.toml, is
edited by hand. `--against` names another version of that file, whose mean error stands in a column beside
(`git show b5fd373:profiles/data/links.toml`: before the curves were fitted).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.accuracy.comm_rows import FAMILIES, Published, kinds, modelled_s, read_kernels, read_published
from bench.accuracy.fit_collectives import FITS, fit_links, fitted_links
from profiles.hardware import load_link, read_links
from profiles.vocabulary import Link

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables; 0, or 2 where DIR has no comm.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of comm.csv")
    parser.add_argument("--fit", action="store_true", help="fit the parameters anew and take them")
    parser.add_argument("--rows", action="store_true", help="print every row too")
    parser.add_argument("--against", type=Path, help="another links.toml, whose errors stand beside")
    args = parser.parse_args(argv)
    path = args.data / "comm.csv"
    if not path.is_file():
        print(f"skipped: no {path}")
        return 2
    rows, left = read_published(path)
    kernels = args.data / "kernels" / "comm.csv.gz"
    if kernels.is_file():
        rows = (*rows, *read_kernels(kernels))
    values = fit_links(rows) if args.fit else {}
    links = fitted_links(values)
    others = read_links(args.against.read_text(encoding="utf-8")) if args.against else {}
    print_errors(rows, links, every=args.rows, against=others)
    print("\nNot predicted:")
    for reason, count in sorted(left.items(), key=lambda item: -item[1]):
        print(f"  {count:4d}  {reason}")
    print_parameters(rows, links)
    return 0


def signed_error(row: Published, links: Callable[[str], Link] = load_link) -> float:
    """(modelled - measured) / measured seconds."""
    return modelled_s(row, links) / row.measured_s - 1


def print_errors(
    rows: Sequence[Published],
    links: Callable[[str], Link],
    *,
    every: bool,
    against: Mapping[str, Link] | None = None,
) -> None:
    """Print one line for each kind of link, operation and half of the rows, with the mean error of the links `against`
    beside that of `links`."""
    head = f"{'link':66} {'op':14} {'half':7} {'rows':>4} {'mean':>7} {'median':>7} {'bias':>7} {'worst':>7}"
    print(head + f"{'':14} {'against':>7}" if against else head)
    for kind in kinds(rows):
        for op in OPS:
            for half, wanted in (("fit", True), ("report", False)):
                mine = [row for row in rows if row.family.kind == kind and row.op == op and row.fit_half == wanted]
                if not mine:
                    continue
                errors = [signed_error(row, links) for row in mine]
                sizes = [abs(error) for error in errors]
                worst = max(zip(sizes, errors, mine, strict=True), key=lambda triple: triple[0])
                line = (
                    f"{kind:66} {op:14} {half:7} {len(mine):4d} {statistics.mean(sizes):7.1%}"
                    f" {statistics.median(sizes):7.1%} {statistics.mean(errors):+7.1%}"
                    f" {worst[1]:+7.1%} {worst[2].id:13}"
                )
                if against:
                    other = statistics.mean(abs(signed_error(row, against.__getitem__)) for row in mine)
                    line += f" {other:7.1%}"
                print(line.rstrip())
                for error, row in zip(errors, mine, strict=True) if every else ():
                    print(f"    {row.id} {row.ranks:4d} ranks {row.size_bytes:14.0f} bytes {error:+7.1%}")


def print_parameters(rows: Sequence[Published], links: Callable[[str], Link]) -> None:
    """Each fitted parameter with the rows behind it; what has none says where it comes from."""
    print("\nFitted parameters (on the fit half of the rows named):")
    for fit in FITS:
        mine = [row.id for row in rows if row.fit_half and row.family.kind in fit.kinds]
        link = links(fit.link)
        for name, _, _ in fit.free:
            shares = dict(link.share_by_ranks)
            value = shares.get(int(name[6:])) if name.startswith("share_") else getattr(link, name)
            print(f"  {fit.link:16} {name:22} {_number(value):>10}  {len(mine)} rows of {mine[0]} to {mine[-1]}")
    print("\nSources of the links in use:")
    for name in dict.fromkeys(family.link for family in FAMILIES):
        print(f"  {name}: {links(name).source}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    raise SystemExit(main())
