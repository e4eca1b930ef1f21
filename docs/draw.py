"""The pictures of the page on how an estimate is made, drawn by plain code: `python docs/draw.py` writes them anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent / "pictures"
INK, PALE, LINE = "#1f2933", "#f7f8fa", "#9aa5b1"
FORWARD, BACKWARD, COMM, OTHER, IDLE = "#a9cdee", "#2c7a7b", "#b7791f", "#6b7fb3", "#e4e7eb"


def text(x: float, y: float, words: str, *, size: int = 13, anchor: str = "start", fill: str = INK) -> str:
    """Words at a point, `anchor` start, middle or end."""
    said = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{said}</text>'


def box(
    x: float, y: float, width: float, height: float, fill: str, words: Sequence[str] = (), *, ink: str = INK
) -> str:
    """A box with lines of words in its middle."""
    top = y + height / 2 + 4.5 - 8 * (len(words) - 1)
    lines = [
        text(x + width / 2, top + 16 * i, word, anchor="middle", fill=ink, size=12) for i, word in enumerate(words)
    ]
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}" stroke="#ffffff"/>'
    return shape + "".join(lines)


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line with a head at its end."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{INK}" marker-end="url(#head)"/>'


def picture(width: int, height: int, title: str, parts: Iterator[str]) -> str:
    """A whole picture on a ground of its own, so that it can be read on dark pages too."""
    head = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{INK}"/></marker></defs>'
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' font-family="sans-serif">\n<title>{title}</title>\n{head}\n'
        f'<rect width="{width}" height="{height}" rx="6" fill="{PALE}"/>\n{body}\n</svg>\n'
    )


def way() -> Iterator[str]:
    """From a model and a cluster to seconds and bytes."""
    columns = [
        (20, [("model", ["layers, sizes"]), ("plan", ["degrees, batch"]), ("cluster", ["devices, links"])], OTHER),
        (210, [("operators of a rank", ["FLOPs, bytes moved"]), ("collectives", ["bytes, groups"])], FORWARD),
        (
            420,
            [("kernels' seconds", ["measured, else modelled"]), ("links' seconds", ["tables, else algorithms"])],
            FORWARD,
        ),
        (630, [("passes of a stage", ["device or host"]), ("memory of a rank", ["at its fullest moment"])], BACKWARD),
        (840, [("the iteration", ["schedule, sync, step"]), ("does it fit?", ["90% interval"])], BACKWARD),
    ]
    for x, rows, fill in columns:
        for number, (title, words) in enumerate(rows):
            y = 30 + number * (62 if len(rows) == 3 else 93)
            ink = "#ffffff" if fill in (BACKWARD, OTHER) else INK
            yield box(x, y, 150, 50, fill, [title, *words], ink=ink)
    for x in (170, 360, 570, 780):
        for y in (55, 148):
            yield arrow(x + 4, y, x + (34 if x == 170 else 54), y)
    yield text(
        20, 222, "Each arrow is a formula of this page. What is measured replaces the box that it measures.", size=12
    )


def passes() -> Iterator[str]:
    """A forward pass: device and host, and what is exposed."""
    yield text(20, 28, "One micro-batch forward through a stage")
    rows = (("host launches", 46), ("device", 86), ("links", 126))
    for name, y in rows:
        yield text(20, y + 19, name, size=12)
    at = 130.0
    for number in range(14):
        yield box(at + 46 * number, 46, 40, 28, IDLE)
    spans = [("norm", 30, OTHER), ("qkv", 90, FORWARD), ("attention", 100, FORWARD), ("out", 60, FORWARD)]
    spans += [("sum", 70, ""), ("norm", 30, OTHER), ("up, gate", 140, FORWARD), ("down", 80, FORWARD), ("sum", 70, "")]
    x = at
    for name, width, fill in spans:
        if fill:
            yield box(x, 86, width, 28, fill, [name] if width > 40 else [], ink="#ffffff" if fill == OTHER else INK)
        else:
            yield box(x, 126, width, 28, COMM, ["all-reduce"], ink="#ffffff")
        x += width
    yield text(
        at,
        184,
        "pass = (device^p + host^p)^(1/p): the slower of the two, and a little more where both are near.",
        size=12,
    )
    yield text(
        at, 204, "Collectives stand between kernels (exposed), unless the software runs them beside a product.", size=12
    )


def pipeline() -> Iterator[str]:
    """1F1B of four stages and eight micro-batches: equal stages, backward twice as long."""
    stages, batches, unit = 4, 8, 11.0
    f, b = 2.0, 4.0
    ends_f = [[0.0] * batches for _ in range(stages)]
    ends_b = [[0.0] * batches for _ in range(stages)]
    orders = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, batches)
        order = [("f", i) for i in range(ahead)]
        for i in range(batches):
            order += [("f", ahead + i)] if ahead + i < batches else []
            order += [("b", i)]
        orders.append(order)
    free, done, left = [0.0] * stages, [0] * stages, stages * batches * 2
    starts: list[tuple[int, str, int, float]] = []
    while left:
        for stage in range(stages):
            if done[stage] == len(orders[stage]):
                continue
            kind, i = orders[stage][done[stage]]
            ready = ends_f[stage - 1][i] if kind == "f" and stage else 0.0
            if kind == "b":
                ready = ends_b[stage + 1][i] if stage < stages - 1 else ends_f[stage][i]
            if (kind == "f" and stage and not ready) or (kind == "b" and not ready):
                continue
            start = max(free[stage], ready)
            free[stage] = start + (f if kind == "f" else b)
            (ends_f if kind == "f" else ends_b)[stage][i] = free[stage]
            starts.append((stage, kind, i, start))
            done[stage], left = done[stage] + 1, left - 1
    total = max(free)
    yield text(20, 28, "1F1B, four stages, eight micro-batches: (m + p - 1) (f + b)")
    for stage in range(stages):
        y = 44 + 34 * stage
        yield text(20, y + 19, f"stage {stage}", size=12)
        yield box(80, y, total * unit, 28, IDLE)
    for stage, kind, i, start in starts:
        width = (f if kind == "f" else b) * unit
        fill, ink = (FORWARD, INK) if kind == "f" else (BACKWARD, "#ffffff")
        yield box(80 + start * unit, 44 + 34 * stage, width, 28, fill, [str(i)], ink=ink)
    y = 44 + 34 * stages + 12
    legend = [(FORWARD, "forward f"), (BACKWARD, "backward b"), (IDLE, "bubble (p - 1) (f + b)")]
    for number, (fill, words) in enumerate(legend):
        yield box(80 + 150 * number, y, 18, 14, fill)
        yield text(104 + 150 * number, y + 12, words, size=12)


def ring() -> Iterator[str]:
    """Eight ranks on two nodes: the ring leaves each node once, the tree has fewer hops."""
    yield text(20, 28, "A ring through two nodes of four: each step waits for the thinnest link")
    for node in range(2):
        yield f'<rect x="{30 + 300 * node}" y="46" width="250" height="120" rx="6" fill="#ffffff" stroke="{LINE}"/>'
        yield text(40 + 300 * node, 64, f"node {node}", size=12)
        for rank in range(4):
            yield box(45 + 300 * node + 58 * rank, 84, 46, 34, FORWARD, [str(4 * node + rank)])
            if rank < 3:
                yield arrow(91 + 300 * node + 58 * rank, 101, 103 + 300 * node + 58 * rank, 101)
    yield arrow(265, 101, 343, 101)
    yield text(304, 92, "NIC", size=11, anchor="middle")
    yield f'<path d="M542 118 C542 190, 68 190, 68 120" fill="none" stroke="{INK}" marker-end="url(#head)"/>'
    yield text(620, 84, "all-reduce, ring:", size=12)
    yield text(620, 104, "startup + 2 (hops) latency", size=12)
    yield text(620, 124, "+ 2 (n - 1) / n bytes / rate", size=12)
    yield text(620, 152, "tree: startup + 2 log2 hops", size=12)
    yield text(620, 172, "+ 2 bytes / (0.92 rate)", size=12)


def memory() -> Iterator[str]:
    """What a rank holds over an iteration, and the fullest moment."""
    yield text(20, 28, "Memory of a rank of stage 0 over an iteration (1F1B)")
    left, top, width, height = 60, 44, 560, 170
    state = 70
    yield f'<rect x="{left}" y="{top + height - state}" width="{width}" height="{state}" fill="{OTHER}"/>'
    yield text(
        left + 10,
        top + height - state / 2 + 4,
        "weights, gradients, optimizer state, sharded by ZeRO",
        fill="#ffffff",
        size=12,
    )
    steps = [0, 18, 36, 54, 72, 54, 72, 54, 72, 54, 72, 54, 36, 18, 0]
    points = []
    for number, value in enumerate(steps):
        x = left + width * number / (len(steps) - 1)
        points += [(x, top + height - state - value)]
    path = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
    ground = top + height - state
    yield f'<polygon points="{left},{ground} {path} {left + width},{ground}" fill="{FORWARD}"/>'
    yield text(left + 170, top + height - state - 22, "activations of micro-batches in flight", size=12)
    limit = f'y1="{top + 8}" y2="{top + 8}" stroke="#c53030" stroke-dasharray="6 3"'
    yield f'<line x1="{left}" x2="{left + width}" {limit}/>'
    yield text(left + width + 8, top + 12, "device", size=12)
    yield text(left + width + 8, top + 30, "less context, communicators,", size=12)
    yield text(left + width + 8, top + 46, "firm loose blocks = usable", size=12)
    yield text(left + width + 8, top + 76, "peak: the backward pass of", size=12)
    yield text(left + width + 8, top + 92, "the layer at which most lives", size=12)


PICTURES = {
    "way": (1010, 235, "From a model, a plan and a cluster to seconds and bytes", way),
    "pass": (820, 220, "One pass of a stage: host, device and links", passes),
    "pipeline": (860, 220, "A 1F1B pipeline", pipeline),
    "ring": (830, 205, "A ring over two nodes", ring),
    "memory": (830, 230, "Memory of a rank over an iteration", memory),
}


def draw(name: str) -> str:
    """Return the picture of that name as SVG."""
    width, height, title, parts = PICTURES[name]
    return picture(width, height, title, parts())


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        (FOLDER / f"{name}.svg").write_text(draw(name), encoding="utf-8")
