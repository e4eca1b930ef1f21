"""The training framework of a row and what it is declared to do: columns first, then `profiles/data/software.toml`."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, TypeVar, get_args

from estimator.pricing.recipe import GradDType, Launch, Overlap, Software, ZeroStage
from estimator.pricing.software import GENERIC, Framework, load_frameworks
from profiles.errors import InputError
from profiles.vocabulary import DType, Kernels, RecomputeKind

if TYPE_CHECKING:
    from planner.one_job.validation.rows import RunRow

Word = TypeVar("Word", bound=str)

DTYPES: dict[str, DType] = {name: name for name in get_args(DType)}
GRAD_DTYPES: dict[str, GradDType] = {name: name for name in get_args(GradDType)}
KERNELS: dict[str, Kernels] = {name: name for name in get_args(Kernels)}
LAUNCHES: dict[str, Launch] = {name: name for name in get_args(Launch)}
OVERLAPS: dict[str, Overlap] = {name: name for name in get_args(Overlap)}

DTYPE_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"fp4", "fp8"),
    (r"fp8|float8|e4m3|hybrid", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|half|amp", "fp16"),
    (r"tf32", "tf32"),
    (r"fp32|float32|single", "fp32"),
)
"""Compute dtype by the first pattern in the row's dtype, lower case. With `amp_bf16` it is the 16-bit type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFramework(Framework):
    """A framework, and how rows of its published runs are read."""

    patterns: tuple[str, ...]
    tensor_parallel: bool = True
    predicts_masked_only: bool = False
    fed_lengths: tuple[tuple[int, int], ...] = ()
    seq_len: int = 0
    samples_per_device: int = 0
    recompute: RecomputeKind = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a row trains with: the framework with the row's own statements in place of its defaults.

    `dtype` is that of the matrix products.
    """

    framework: RowFramework
    software: Software
    dtype: DType
    grad_dtype: GradDType
    vocabulary_multiple: int


@cache
def load_row_frameworks() -> dict[str, RowFramework]:
    """All entries of software.toml by name, in the file's order."""
    entries = tomllib.loads(files("profiles").joinpath("data/software.toml").read_text(encoding="utf-8"))
    read = [part.name for part in fields(RowFramework)[len(fields(Framework)) :]]
    found = {}
    for name, declared in load_frameworks().items():
        entry = entries[name]
        entry["fed_lengths"] = tuple((int(full), fed) for full, fed in entry.get("fed_lengths", {}).items())
        entry["patterns"] = tuple(entry["patterns"])
        common = {part.name: getattr(declared, part.name) for part in fields(Framework)}
        found[name] = RowFramework(**common, **{key: entry[key] for key in read if key in entry})
    return found


def framework_of(row: RunRow, assumed: list[str]) -> RowFramework:
    """The row's framework: by its column, else by the first pattern found in its text, else the generic one.

    InputError for a `framework` that the file does not have.
    """
    known = load_row_frameworks()
    if row.framework:
        name = row.framework.strip().lower()
        if name not in known:
            found = repr(row.framework)
            raise InputError(where=row.where, key="framework", found=found, expected=f"one of {', '.join(known)}")
        return known[name]
    text = row.said.lower()
    for framework in known.values():
        if any(re.search(pattern, text) for pattern in framework.patterns):
            return framework
    assumed.append("framework: not told; a generic one (framework)")
    return known[GENERIC]


def declared_of(row: RunRow, framework: RowFramework, assumed: list[str]) -> Declared | str:
    """What the row trains with; a string says why it cannot be told. Adds to `assumed` what the row leaves open."""
    word = dtype_of(row, framework, assumed)
    dtype = DTYPES.get(word)
    if dtype is None:
        return f"dtype: {word} is none of {', '.join(DTYPES)}"
    pure = "mode pure" in row.optimizer_notes.lower()
    masters = row.optimizer_masters if row.optimizer_masters is not None else not pure
    usual = framework.software
    software = replace(
        usual,
        kernels=KERNELS.get(row.kernels, "fused" if _compiled(row) else usual.kernels),
        launch=LAUNCHES.get(row.launch, usual.launch),
        fused_cross_entropy=_first(row.fused_cross_entropy, usual.fused_cross_entropy),
        optimizer_masters=masters,
    )
    return Declared(
        framework=framework,
        software=software,
        dtype=dtype,
        grad_dtype=_grad_dtype(row, framework, dtype, pure=pure),
        vocabulary_multiple=row.vocab_multiple or framework.vocabulary_multiple,
    )


def _first(stated: bool | None, otherwise: bool) -> bool:
    return otherwise if stated is None else stated


def _compiled(row: RunRow) -> bool:
    """Whether the row says that a compiler fused its small operators."""
    text = row.said.lower()
    return re.search(r"torch\.compile|\bcompiled?\b", text) is not None and "no compile" not in text


def dtype_of(row: RunRow, framework: RowFramework, assumed: list[str]) -> str:
    """Compute dtype of the row's matrix products: `tf32` too, and the row's own word where it is none of them."""
    text = row.dtype.lower()
    if not text:
        assumed.append(f"dtype: not stated; {framework.dtype}, the default of {framework.name} (dtype)")
        return framework.dtype
    found = next((dtype for pattern, dtype in DTYPE_PATTERNS if re.search(pattern, text)), text)
    if "fp4" in text:
        assumed.append("dtype: 4-bit products are taken as fp8")
    return found


def _grad_dtype(row: RunRow, framework: RowFramework, dtype: DType, *, pure: bool) -> GradDType:
    if row.grad_dtype:
        return GRAD_DTYPES[row.grad_dtype]
    if "fp32 grad" in row.dtype.lower():
        return "fp32"
    if pure:
        return "fp16" if dtype == "fp16" else "bf16"
    return dict(framework.grad_dtype)[dtype]


def chosen(row: RunRow, field: str, words: dict[str, Word]) -> set[Word]:
    """The words that a column joins by +; empty for `none`. InputError for any other word."""
    text: str = getattr(row, field)
    found = {word for word in re.split(r"[+,; ]+", text.lower()) if word} - {"none"}
    if not found <= set(words):
        expected = f"any of {', '.join(words)} joined by +, or none"
        raise InputError(where=row.where, key=field, found=repr(text), expected=expected)
    return {words[word] for word in found}


def overlap_of(row: RunRow, framework: RowFramework, zero: ZeroStage, assumed: list[str]) -> frozenset[Overlap]:
    """What the row runs beside compute: the column, else what the notes say outright, else the framework's default (an
    assumption)."""
    if row.overlap:
        return frozenset(chosen(row, "overlap", OVERLAPS))
    notes = row.notes.lower()
    if "no grad/param overlap" in notes or "overlap-style paths off" in notes:
        return frozenset()
    torch_ddp = re.search(r"ddp-impl torch \(<=\s*(\d+)b\)", notes)
    if torch_ddp and row.params_b is not None and row.params_b < int(torch_ddp[1]) + 1:
        return framework.overlap | {"dp"}
    overlap = framework.overlap_under(zero)
    if re.search(r"async ?-?tp\b", notes):
        overlap |= {"tp"}
    shown = "+".join(sorted(overlap)) or "none"
    assumed.append(f"overlap: not stated; {shown}, the default of {framework.name} (overlap)")
    return overlap
