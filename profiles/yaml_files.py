"""YAML in the core schema of YAML 1.2, read within limits and written so that either version reads the same."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from profiles.errors import InputError
from profiles.files import read_text
from profiles.limits import LIMITS
from profiles.numerals import read_whole

CORE_SCALARS = (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", ("~", "n", "N", "")),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)$", "-+.0123456789"),
    ("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", "-+."),
)
"""(tag, pattern, first characters) of the scalars that YAML 1.2 (core schema) reads as something else than text."""

_STEP = re.compile(r"\.?([A-Za-z_]\w*)|\[(\d{1,9})\]")
"""A step of a key's path: a name, or a number in a list."""


def read_yaml(path: str | Path) -> Any:
    """Return the value of a YAML file, in the core schema of YAML 1.2. Raise InputError with line and column.

    Numbers such as 1.25e9 are numbers, `no` and `on` are text. A key given twice in one mapping is refused, and what is
    beyond the limits (`profiles.limits`): bytes, depth, values with aliases counted as what they stand for.
    """
    return parse_yaml(read_text(path, limit=LIMITS.yaml_bytes), where=str(path))


def parse_yaml(text: str, *, where: str) -> Any:
    """Return the value of a YAML text. Raise InputError as `read_yaml`, naming `where`."""
    import yaml

    try:
        _check_events(text, where=where)
        return yaml.load(text, Loader=_yaml_loader())
    except yaml.MarkedYAMLError as error:
        raise InputError(
            where=_place(where, error.problem_mark), found=f"no YAML ({error.problem})", expected="a YAML document"
        ) from None
    except InputError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(where=where, found=f"no usable YAML ({error})", expected="a YAML document") from None


def line_of(text: str, key: str) -> int | None:
    """Return the line, from 1, on which what `key` (`sites[0].fabric.link`) means begins in a YAML text that
    `parse_yaml` reads; of a key that is not there, the nearest above it. None where nothing of the key is there.

    >>> line_of("sites:\\n- name: north\\n  nodes: []\\n", "sites[0].fabric.levels")
    2
    """
    import yaml

    node: Any = yaml.compose(text, Loader=_fast("SafeLoader"))
    line = None
    for name, number in _STEP.findall(key):
        inside = None
        if number and isinstance(node, yaml.SequenceNode) and int(number) < len(node.value):
            inside = node.value[int(number)]
            line = inside.start_mark.line + 1
        elif name and isinstance(node, yaml.MappingNode):
            for key_node, value in node.value:
                if key_node.value == name:
                    inside, line = value, key_node.start_mark.line + 1
        if inside is None:
            break
        node = inside
    return line


def yaml_text(value: Any, *, width: int = 120) -> str:
    """Return a value of mappings, lists and scalars as YAML, in the order given: `parse_yaml` reads back the same.

    Text that either YAML 1.1 or 1.2 reads as something else (`no`, `1e9`) is quoted.
    """
    import yaml

    class BothDumper(yaml.SafeDumper):
        """Safe, which quotes what either version would not read as text."""

    for tag, pattern, first in CORE_SCALARS:
        BothDumper.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))
    return str(yaml.dump(value, Dumper=BothDumper, sort_keys=False, width=width))


def _place(where: str, mark: Any) -> str:
    return f"{where}, line {mark.line + 1}, column {mark.column + 1}" if mark else where


def _fast(name: str) -> Any:
    """PyYAML's class on libyaml where it was built with that (ten times as fast), else the one in Python."""
    import yaml

    return getattr(yaml, f"C{name}", None) or getattr(yaml, name)


def _check_events(text: str, *, where: str) -> None:
    """Raise InputError for depth and values beyond the limits: counted on the stream of events, before any value is
    made. An alias counts as all that its anchor holds."""
    import yaml

    counts, names = [0], [""]
    held: dict[str, int] = {}
    events: Iterable[Any] = yaml.parse(text, Loader=_fast("SafeLoader"))
    for event in events:
        mark: Any = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in held:
                problem = f"the alias *{event.anchor} of what has no end before it"
                raise yaml.composer.ComposerError(None, None, problem, mark)
            counts[-1] += held[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            counts[-1] += 1
            held |= {event.anchor: 1} if event.anchor else {}
        elif isinstance(event, yaml.CollectionStartEvent):
            counts.append(1)
            names.append(event.anchor or "")
            if len(counts) - 1 > LIMITS.depth.most:
                raise LIMITS.depth.error(where=_place(where, mark))
        elif isinstance(event, yaml.CollectionEndEvent):
            count, name = counts.pop(), names.pop()
            counts[-1] += count
            held |= {name: count} if name else {}
        if counts[-1] > LIMITS.yaml_values.most:
            raise LIMITS.yaml_values.error(where=_place(where, mark))


@cache
def _yaml_loader() -> type[Any]:
    """PyYAML's safe loader with the scalars of YAML 1.2: its own 1.1 reads `1e9` as text, `no` as false, `010` as 8."""
    import yaml

    base: Any = _fast("SafeLoader")

    class CoreLoader(base):  # type: ignore[misc]
        """Safe, YAML 1.2 core schema, each key once."""

        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own class attribute, here emptied)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, str):
                    problem = f"the key {key!r}; keys are text"
                elif key in seen:
                    problem = f"the key {key!r} twice in one mapping"
                else:
                    seen.add(key)
                    continue
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            return dict(super().construct_mapping(node, deep))

    for tag, pattern, first in CORE_SCALARS:
        CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))
    CoreLoader.add_constructor("tag:yaml.org,2002:int", _whole)
    return CoreLoader


def _whole(_: Any, node: Any) -> int:
    import yaml

    try:
        return (-1 if node.value[:1] == "-" else 1) * read_whole(node.value.lstrip("+-").lstrip("0") or "0")
    except ValueError:
        problem = f"a whole number of {len(node.value)} characters, more than {LIMITS.digits.most} digits"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None
