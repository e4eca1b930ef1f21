"""Charts as Vega-Lite specifications: what is drawn by which axis. Fonts and inks are set where a page is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.shared.pictures import COLOURS

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
ROW_HEIGHT = 26

Row = dict[str, Any]


def _chart(rows: Sequence[Row], **parts: Any) -> dict[str, Any]:
    return {"$schema": SCHEMA, "width": "container", "data": {"values": list(rows)}, **parts}


_MARKS = {"tickCount": 8, "format": ".4~r"}


def _axis(field: str, title: str, **more: Any) -> dict[str, Any]:
    return {"field": field, "type": "quantitative", "title": title, **more}


def _names(field: str, title: str | None = None, **more: Any) -> dict[str, Any]:
    return {"field": field, "type": "nominal", "title": title, **more}


def _order(rows: Sequence[Row], field: str) -> list[Any]:
    """The values in the order of the rows."""
    return list(dict.fromkeys(row[field] for row in rows))


def stacked(
    rows: Sequence[Row], *, along: str, of: str, parts: str, unit: str, line: float | None = None, line_name: str = ""
) -> dict[str, Any]:
    """A bar for each of `of`, made of `parts`; `line`: what all of them are held against."""
    names = _order(rows, parts)
    bars = {
        "mark": {"type": "bar"},
        "encoding": {
            "y": _names(of, sort=_order(rows, of), axis={"labelLimit": 220}),
            "x": _axis(along, unit, stack="zero", axis=_MARKS),
            "color": _names(parts, scale={"domain": names, "range": colours(len(names))}, legend={"columns": 3}),
            "order": {"field": "place", "type": "quantitative"},
            "tooltip": [_names(of), _names(parts), _axis(along, unit, format=".4~g")],
        },
    }
    layers: list[dict[str, Any]] = [bars]
    if line is not None:
        layers.append(
            {
                "data": {"values": [{"at": line, "is": line_name}]},
                "mark": {"type": "rule", "strokeWidth": 2, "strokeDash": [6, 3]},
                "encoding": {
                    "x": {"field": "at", "type": "quantitative"},
                    "tooltip": [_names("is"), _axis("at", unit)],
                },
            }
        )
    numbered = [{**row, "place": names.index(row[parts])} for row in rows]
    return _chart(numbered, height=ROW_HEIGHT * max(1, len(_order(rows, of))), layer=layers)


def bars(rows: Sequence[Row], *, along: str, of: str, unit: str, form: str = ".3~g") -> dict[str, Any]:
    """A bar for each row, in their order; those below zero in a colour of their own."""
    return _chart(
        rows,
        height=ROW_HEIGHT * max(1, len(rows)),
        mark={"type": "bar"},
        encoding={
            "y": _names(of, sort=_order(rows, of), axis={"labelLimit": 420}),
            "x": _axis(along, unit, axis={"tickCount": 8, "format": form}),
            "color": {"condition": {"test": f"datum['{along}'] < 0", "value": COLOURS[2]}, "value": COLOURS[0]},
            "tooltip": [_names(of), _axis(along, unit, format=form)],
        },
    )


def intervals(rows: Sequence[Row], *, of: str, unit: str) -> dict[str, Any]:
    """A bar for each row, in their order, as long as its field `unit`, and a line from its `low` to its `high`."""
    names = _names(of, sort=_order(rows, of), axis={"labelLimit": 320})
    return _chart(
        rows,
        height=ROW_HEIGHT * max(1, len(rows)),
        layer=[
            {
                "mark": {"type": "bar"},
                "encoding": {
                    "y": names,
                    "x": _axis(unit, unit, axis=_MARKS),
                    "color": {"value": COLOURS[0]},
                    "tooltip": [_names(of), *(_axis(key, key, format=".4~g") for key in (unit, "low", "high"))],
                },
            },
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"y": names, "x": _axis("low", unit), "x2": {"field": "high"}},
            },
        ],
    )


def points(
    rows: Sequence[Row], *, x: str, y: str, x_unit: str, y_unit: str, name: str, kind: str, front: bool = False
) -> dict[str, Any]:
    """A point for each row; with `front` a line through those that no other one beats in both, which have `front`."""
    kinds = _order(rows, kind)
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "point", "filled": True, "size": 90},
            "encoding": {
                "x": _axis(x, x_unit, scale={"zero": False}),
                "y": _axis(y, y_unit, scale={"zero": False}),
                "color": _names(kind, scale={"domain": kinds, "range": colours(len(kinds))}),
                "shape": _names(kind),
                "tooltip": [_names(name), _axis(x, x_unit, format=".4~g"), _axis(y, y_unit, format=".4~g")],
            },
        }
    ]
    if front:
        layers.insert(
            0,
            {
                "transform": [{"filter": "datum.front"}],
                "mark": {"type": "line", "interpolate": "step-after", "strokeDash": [4, 4], "opacity": 0.6},
                "encoding": {"x": _axis(x, x_unit), "y": _axis(y, y_unit), "order": _axis(x, x_unit)},
            },
        )
    return _chart(rows, height=300, layer=layers)


def lines(
    rows: Sequence[Row],
    *,
    x: str,
    y: str,
    x_unit: str,
    y_unit: str,
    of: str,
    logarithmic: bool = False,
    whole: bool = False,
) -> dict[str, Any]:
    """A line for each of `of`; `logarithmic`: along x; `whole`: x counts something."""
    names = _order(rows, of)
    scale = {"type": "log", "nice": False} if logarithmic else {"nice": False}
    return _chart(
        rows,
        height=220,
        mark={"type": "line", "strokeWidth": 1.5},
        encoding={
            "x": _axis(x, x_unit, scale=scale, axis=_MARKS | ({"tickMinStep": 1} if whole else {})),
            "y": _axis(y, y_unit),
            "color": _names(of, scale={"domain": names, "range": colours(len(names))}),
            "tooltip": [_names(of), _axis(x, x_unit, format=".4~g"), _axis(y, y_unit, format=".4~g")],
        },
    )


def grouped(rows: Sequence[Row], *, along: str, of: str, groups: str, unit: str) -> dict[str, Any]:
    """A bar for each of `groups` beside the others, for each of `of`."""
    names = _order(rows, groups)
    return _chart(
        rows,
        height=ROW_HEIGHT * max(1, len(rows)) * 0.75,
        mark={"type": "bar"},
        encoding={
            "y": _names(of, sort=_order(rows, of), axis={"labelLimit": 420}),
            "yOffset": _names(groups, sort=names),
            "x": _axis(along, unit, axis=_MARKS),
            "color": _names(groups, scale={"domain": names, "range": colours(len(names))}),
            "tooltip": [_names(of), _names(groups), _axis(along, unit, format=".4~g")],
        },
    )


def against(rows: Sequence[Row], *, x: str, y: str, unit: str, name: str, kind: str, off: float) -> dict[str, Any]:
    """A point for each row on two logarithmic axes, with the line of equals and those that are `off` by a share."""
    kinds = sorted(set(_order(rows, kind)))
    low = min(min(row[x], row[y]) for row in rows) * 0.9
    high = max(max(row[x], row[y]) for row in rows) * 1.1
    scale = {"type": "log", "domain": [low, high], "nice": False}
    ends = [
        {"line": said, x: at, y: at * factor}
        for said, factor in (("equal", 1.0), ("over", 1 + off), ("under", 1 / (1 + off)))
        for at in (low, high)
    ]
    axes = {
        "x": _axis(x, f"{x}, {unit}", scale=scale, axis=_MARKS),
        "y": _axis(y, f"{y}, {unit}", scale=scale, axis=_MARKS),
    }
    return _chart(
        rows,
        height=460,
        layer=[
            {
                "data": {"values": ends},
                "mark": {"type": "line", "clip": True, "color": "#8a929b", "strokeWidth": 1},
                "encoding": {
                    **axes,
                    "detail": _names("line"),
                    "strokeDash": {
                        "condition": {"test": "datum.line === 'equal'", "value": [1, 0]},
                        "value": [4, 4],
                    },
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 40, "opacity": 0.75},
                "encoding": {
                    **axes,
                    "color": _names(
                        kind,
                        scale={"domain": kinds, "range": colours(len(kinds))},
                        legend={"columns": 6, "symbolLimit": 60},
                    ),
                    "tooltip": [
                        _names(name),
                        _names(kind),
                        _axis(x, x, format=".4~g"),
                        _axis(y, y, format=".4~g"),
                    ],
                },
            },
        ],
    )


def steps(rows: Sequence[Row], *, x: str, y: str, x_unit: str, y_unit: str, lines: str) -> dict[str, Any]:
    """A line of steps for each of `lines`."""
    names = _order(rows, lines)
    return _chart(
        rows,
        height=220,
        mark={"type": "line", "interpolate": "step-after", "strokeWidth": 1.5},
        encoding={
            "x": _axis(x, x_unit, axis=_MARKS),
            "y": _axis(y, y_unit),
            "color": _names(lines, scale={"domain": names, "range": colours(len(names))}),
            "tooltip": [_names(lines), _axis(x, x_unit, format=".4~g"), _axis(y, y_unit, format=".4~g")],
        },
    )


def colours(count: int) -> list[str]:
    """So many colours; where there are not enough, the same again, paler each time."""
    return [_paler(COLOURS[place % len(COLOURS)], place // len(COLOURS)) for place in range(count)]


def _paler(colour: str, times: int) -> str:
    kept = 0.55**times
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(255 - kept * (255 - part)):02x}" for part in parts)
