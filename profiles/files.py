"""Reading and writing of whole files: text, JSON and YAML in, all or nothing out."""

from __future__ import annotations

import json
import os
import secrets
import stat
from functools import cache
from pathlib import Path
from typing import Any

from profiles.errors import InputError, MachineError


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Put `content` into the file at `path`, wholly or not at all: write beside it, fsync, rename.

    Text is UTF-8. A file that was there keeps its permissions, a link its place. Raise InputError if the folder does
    not exist or `path` is no regular file; MachineError (disk full, no permission) leaves the old file as it was.
    """
    target = Path(path).resolve()
    mode = _mode_of_existing(target, shown=path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    beside = target.parent / f".cellplan-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        try:
            with beside.open("xb") as file:
                file.write(data)
                file.flush()
                if mode is not None:
                    beside.chmod(mode)
                os.fsync(file.fileno())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
        _sync_folder(target.parent)
    except OSError as error:
        raise MachineError(f"{path}: could not be written: {error.strerror or error}") from error


def read_text(path: str | Path) -> str:
    """Return the UTF-8 text of a file, without a byte order mark. Raise InputError if it cannot be read."""
    expected = "a readable text file"
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            where=str(path), found=f"a byte that is not UTF-8 at offset {error.start}", expected="text in UTF-8"
        ) from None
    except OSError as error:
        raise InputError(where=str(path), found=f"an error ({error.strerror or error})", expected=expected) from None


def read_json(path: str | Path) -> Any:
    """Return the value of a JSON file. Raise InputError with line and column, also for keys given twice, NaN and
    Infinity."""
    return parse_json(read_text(path), where=str(path))


def parse_json(text: str, *, where: str) -> Any:
    """Return the value of a JSON text. Raise as `read_json` does, naming `where`."""

    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in pairs:
            if key in values:
                raise InputError(where=where, key=key, found="the key twice in one object", expected="each key once")
            values[key] = value
        return values

    def refuse_constant(name: str) -> Any:
        raise InputError(where=where, found=name, expected="a finite number")

    try:
        return json.loads(text, object_pairs_hook=refuse_twice, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        place = f"{where}, line {error.lineno}, column {error.colno}"
        raise InputError(where=place, found=f"no JSON ({error.msg})", expected="a JSON document") from None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(where=where, found=f"no usable JSON ({error})", expected="a JSON document") from None


def read_yaml(path: str | Path) -> Any:
    """Return the value of a YAML file, in the core schema of YAML 1.2. Raise InputError with line and column.

    Numbers such as 1.25e9 are numbers, `no` and `on` are text. A key given twice in one mapping is refused.
    """
    return parse_yaml(read_text(path), where=str(path))


def parse_yaml(text: str, *, where: str) -> Any:
    """The value of a YAML text; errors as `read_yaml`, naming `where`."""
    import yaml

    try:
        return yaml.load(text, Loader=_yaml_loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{where}, line {mark.line + 1}, column {mark.column + 1}" if mark else where
        raise InputError(where=place, found=f"no YAML ({error.problem})", expected="a YAML document") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(where=where, found=f"no usable YAML ({error})", expected="a YAML document") from None


CORE_SCALARS = (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", ("~", "n", "N", "")),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)$", "-+.0123456789"),
    ("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", "-+."),
)
"""(tag, pattern, first characters) of the scalars that YAML 1.2 (core schema) reads as something else than text."""


def yaml_text(value: Any, *, width: int = 120) -> str:
    """Return a value of mappings, lists and scalars as YAML, in the order given: `parse_yaml` reads back the same.

    Text that either YAML 1.1 or 1.2 reads as something else (`no`, `1e9`) is quoted.
    """
    import re

    import yaml

    class BothDumper(yaml.SafeDumper):
        """Safe, which quotes what either version would not read as text."""

    for tag, pattern, first in CORE_SCALARS:
        BothDumper.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))
    return str(yaml.dump(value, Dumper=BothDumper, sort_keys=False, width=width))


@cache
def _yaml_loader() -> type[Any]:
    """PyYAML's safe loader with the scalars of YAML 1.2: its own 1.1 reads `1e9` as text, `no` as false, `010` as 8."""
    import re

    import yaml

    class CoreLoader(yaml.SafeLoader):
        """Safe, YAML 1.2 core schema, each key once."""

        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own class attribute, here emptied)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for (key_node, _), key in zip(node.value, keys, strict=True):
                if not isinstance(key, str):
                    problem = f"the key {key!r}; keys are text"
                elif keys.count(key) > 1:
                    problem = f"the key {key!r} twice in one mapping"
                else:
                    continue
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            return super().construct_mapping(node, deep)

    for tag, pattern, first in CORE_SCALARS:
        CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))
    CoreLoader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))
    return CoreLoader


def check_folder(path: Path, *, where: str, key: str) -> None:
    """Raise InputError, of the option `key` of `where`, unless the folder of a file to be written exists: said before
    hours of work, not after them."""
    if not path.resolve().parent.is_dir():
        raise InputError(where=where, key=key, found=path, expected="a path in an existing folder")


def _mode_of_existing(target: Path, *, shown: str | Path) -> int | None:
    """Permission bits of the file to be replaced, None if there is none; InputError if it cannot be a file."""
    try:
        if not target.parent.is_dir():
            raise InputError(
                where=str(shown), found=f"no folder {target.parent}", expected="a path in an existing folder"
            )
        status = target.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MachineError(f"{shown}: could not be written: {error.strerror or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(where=str(shown), found="something that is not a regular file", expected="a path to a file")
    return stat.S_IMODE(status.st_mode)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
