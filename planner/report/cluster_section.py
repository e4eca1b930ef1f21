"""Where a plan sits: ranks on nodes, what it puts on the links, and which links it waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.report.charts import bars
from planner.report.cluster_picture import draw_cluster
from planner.report.load_colours import say_load
from planner.report.network_picture import draw_network, say_vertex
from planner.report.records import Chart, Part, Picture, Section, Table, Words
from planner.shared.words import format_bytes, format_count

MOST_LINKS = 40
TOO_FULL = (
    "A link that is busy for more than the whole iteration cannot carry this in its time: the estimate looks at each"
    " axis by itself. cellplan estimate --plan FILE --network flow says what an iteration takes there."
)


def cluster_section(
    plan: Mapping[str, Any], explanation: Mapping[str, Any] | None, loads: Mapping[str, Any] | None
) -> Section:
    """Return the section; `loads` is what `describe_link_loads` returns, where it was asked for and is known."""
    about = "A box for each node with its devices, coloured by the stage that they work on"
    joined = "; below, what joins them and the way to the network, coloured by load" if loads else ""
    parts: list[Part] = [
        Picture(title="Ranks on nodes", about=about + joined, svg=draw_cluster(plan["devices"], plan["stages"], loads))
    ]
    if loads:
        parts += _links(loads)
    parts += _waited_for(plan, explanation)
    lead = "Loads are modelled: the time that an iteration's bytes take on a link, over the iteration." if loads else ""
    return Section(name="cluster", title="On the cluster", parts=tuple(parts), lead=lead)


def _links(loads: Mapping[str, Any]) -> Iterator[Part]:
    svg = draw_network(loads)
    if svg is not None:
        about = "Nodes below, switches above, and the links between them in the colour of how busy they are"
        yield Picture(title="Links between nodes, by load", about=about, svg=svg)
    links = loads["links"]
    if any(link["busy"] > 1 for link in links):
        yield Words(texts=(TOO_FULL,))
    if not links:
        return
    more = f", the {MOST_LINKS} fullest" if len(links) + loads["left_out"] > MOST_LINKS else ""
    rows = tuple(
        (
            say_vertex(link["from"]),
            say_vertex(link["to"]),
            str(link["cables"]),
            "-" if link["bytes_per_s"] is None else format_count(8 * link["bytes_per_s"], "b/s"),
            format_bytes(link["bytes"]),
            say_load(link["busy"]),
        )
        for link in links[:MOST_LINKS]
    )
    columns = ("from", "to", "cables", "rate of all", "bytes an iteration", "busy")
    yield Table(title=f"Links between nodes{more}", columns=columns, rows=rows, folded=True)


def _waited_for(plan: Mapping[str, Any], explanation: Mapping[str, Any] | None) -> Iterator[Part]:
    links = (explanation or {}).get("binding", {}).get("communication") or ()
    whole = plan["estimate"]["iteration_time_s"]
    rows = [
        {"link": f"{each['axis']} over {each['link']}", "share": each["seconds"] / whole}
        for each in links
        if each["link"]
    ]
    if rows:
        yield Chart(
            title="Links, by the share of an iteration that waits for them",
            about="Bars: the share of an iteration that waits for each axis's link",
            spec=bars(rows, along="share", of="link", unit="share of an iteration", form=".2~%"),
        )
