"""The project as a whole: what importing it loads, which way imports point, what a wheel holds."""

from __future__ import annotations

import ast
import inspect
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner import api

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("profiles", "models_zoo", "estimator", "planner", "cellplan")
"""Each may import those before it, and itself."""

HEAVY = {
    "torch",
    "jax",
    "lightgbm",
    "transformers",
    "sklearn",
    "scipy",
    "pandas",
    "matplotlib",
    "plotly",
    "ray",
    "rich",
    "jinja2",
}


def _modules(package: str) -> Iterator[Path]:
    yield from sorted((ROOT / package).rglob("*.py"))


def _module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _is_for_a_framework(path: Path) -> bool:
    return any(name in str(path.relative_to(ROOT)) for name in ("torch", "jax"))


def _imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    allowed = PACKAGES[: PACKAGES.index(package) + 1]
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in _modules(package)
        for line, name in _imported(ast.parse(path.read_text(encoding="utf-8")))
        if name.partition(".")[0] in {*PACKAGES, "tests", "bench"} - set(allowed)
    ]
    assert not wrong, f"{package} may import {allowed}: {wrong}"


def test_importing_every_module_loads_no_framework() -> None:
    names = [_module_name(path) for package in PACKAGES for path in _modules(package) if not _is_for_a_framework(path)]
    code = f"import sys\nfor name in {names!r}: __import__(name)\nprint(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_help_loads_nothing_heavy() -> None:
    light = {"numpy", "pydantic", "yaml", "sqlite3", "importlib.metadata", "planner.api", "estimator", "models_zoo"}
    code = (
        "import sys\nfrom planner.cli.main import main\nassert main(['--help']) == 0\n"
        f"print(sorted({HEAVY | light!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "llama3-8b", "--cluster", "h100:1x2", "--global-batch", "8", "--json"],
        ["estimate", "llama3-8b", "--cluster", "h100:1x8", "--tp", "8", "--global-batch", "8", "--json"],
        ["models", "list", "--json"],
        ["hardware", "list", "--json"],
    ],
)
def test_commands_load_what_they_use(words: list[str], tmp_path: Path) -> None:
    """A file of a person's is checked by pydantic; what the packages bring is not, and JSON is not printed by rich."""
    idle = {"pydantic", "yaml", "importlib.metadata", "importlib.resources", "numpy.ma", "tomllib", "rich"}
    idle |= {"multiprocessing", "asyncio", "unittest", "email", "http", "ssl", "secrets", "concurrent"}
    idle |= {"numpy"} if words[1] == "list" else set()  # the catalogue prices nothing
    code = (
        f"import sys\nfrom planner.cli.main import main\nassert main({words!r}) == 0\n"
        f"print(sorted({HEAVY | idle!r} & set(sys.modules)), file=sys.stderr)"
    )
    home = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True, env=home)
    assert done.stderr.strip() == "[]"


def test_the_interface_loads_words_alone() -> None:
    """Signatures need the records of options and the words in them; what works is imported when it is called."""
    heavy = HEAVY | {"numpy", "pydantic", "yaml", "sqlite3", "importlib.metadata"}
    code = (
        "import sys\nimport planner.api\n"
        f"print(sorted({heavy!r} & set(sys.modules)), [name for name in sys.modules if name.startswith('planner.')"
        " and not name.startswith(('planner.api', 'planner.shared'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[] []"


def test_the_command_line_asks_the_interface_alone() -> None:
    """It prints what `planner.api` returns; types of results are for the type checker, and hosts are written as a range
    in the way of managers."""
    allowed = (
        "planner.api",
        "planner.cli",
        "planner.shared",
        "profiles.errors",
        "profiles.host_lists",
        "profiles.records",
        "estimator.communication.measuring",
    )
    wrong = []
    for path in _modules("planner/cli"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        typed = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
        for line, name in _imported(tree):
            ours = name.partition(".")[0] in PACKAGES and name != "planner"
            for_types = any(node.lineno < line <= (node.end_lineno or 0) for node in typed)
            if ours and not for_types and not name.startswith(allowed):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong


def test_the_public_functions_are_these() -> None:
    public = [
        name
        for name, value in vars(api).items()
        if callable(value)
        and not inspect.isclass(value)
        and value.__module__.startswith(api.__name__)
        and not name.startswith("_")
    ]
    assert sorted(public) == sorted(api.__all__)
    assert sorted(public) == [
        "afford",
        "answer_schema",
        "comm_fit",
        "comm_measure",
        "comm_show",
        "compare",
        "contention",
        "describe_failure",
        "estimate",
        "export",
        "export_formats",
        "front",
        "hardware_list",
        "hardware_show",
        "hardware_topology",
        "jct_evaluate",
        "jct_predict",
        "jct_train",
        "largest",
        "models_list",
        "models_show",
        "network_measure",
        "network_paths",
        "network_probe",
        "network_show",
        "place",
        "plan",
        "profile",
        "profiles_export",
        "profiles_import",
        "profiles_show",
        "request_schema",
        "run",
        "side_by_side",
        "simulate",
        "simulate_sweep",
        "smallest",
        "timeline",
        "validate",
    ]


def test_every_package_folder_is_listed_for_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    folders = {_module_name(path) for package in PACKAGES for path in _modules(package) if path.name == "__init__.py"}
    assert set(listed) == folders
    assert listed == sorted(listed)


def test_the_wheel_holds_our_packages_and_their_data_alone(tmp_path: Path) -> None:
    build = pytest.importorskip("setuptools.build_meta", reason="setuptools is not installed")
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns("__pycache__")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    code = f"import {build.__name__} as build\nprint(build.build_wheel({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=source, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / done.stdout.splitlines()[-1]) as wheel:
        names = set(wheel.namelist())
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)
    ours = {
        str(path.relative_to(source))
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.is_file() and path.suffix != ".md"
    }
    assert {name for name in names if ".dist-info/" not in name} == ours
