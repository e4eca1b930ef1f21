"""The text of LightGBM's trees, read before LightGBM does: its parser ends the process for what is not well formed.

The format is that of `Booster.model_to_string` (LightGBM 4, gbdt_model_text.cpp and tree.cpp): lines `key=value`, a
blank line, then trees of the bytes that `tree_sizes` tells, `end of trees`, and what was set when they were fitted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InputError

END = "end of trees\n"

_NUMBER = r"[-+]?(?:[0-9]++(?:\.[0-9]*+)?|inf)(?:[eE][-+]?[0-9]{1,3})?"
_NUMBERS = re.compile(rf"(?:{_NUMBER}(?: {_NUMBER})*+)?")
_TAIL = re.compile(
    END
    + r"\nfeature_importances:\n(?:[!-<>-~]++=[0-9]++\n)*+"
    + r"\nparameters:\n(?:\[[a-z0-9_]++: [ -~]*+\n)*+\nend of parameters\n\npandas_categorical:null\n"
)
_WHOLE = re.compile(r"[0-9]{1,9}")
_HEADER = frozenset(
    (
        *("version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "objective"),
        *("average_output", "feature_names", "feature_infos", "tree_sizes"),
    )
)
_OF_NODES = (
    *("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child"),
    *("internal_value", "internal_weight", "internal_count"),
)
_OF_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
_OF_CATEGORIES = ("cat_boundaries", "cat_threshold")
_CATEGORICAL = 1
_DECISIONS = 12
"""Bits: a category or not, missing values to the left or not, then three kinds of what is missing."""


def check_trees(text: str, *, where: str, features: int, outputs: int, bags: int) -> None:
    """Raise InputError, naming `where` and the key, for anything in `text` that LightGBM's parser could fall over, or
    that are no trees over so many `features` for so many `outputs`, as many in each of the `bags`."""
    head, blank, _ = text.partition("\n\n")
    first, *lines = head.split("\n")
    header = _pairs(lines, where, _HEADER)
    if first != "tree" or not blank or not text.isascii():
        raise InputError(where=where, found="no header of trees", expected="the file as `cellplan jct train` wrote it")
    for key, wanted in (("max_feature_idx", features - 1), ("num_tree_per_iteration", outputs), ("num_class", outputs)):
        if _whole(header, key, where) != wanted:
            raise InputError(where=where, key=key, found=header[key], expected=str(wanted))
    for key in ("feature_names", "feature_infos"):
        if not re.fullmatch(rf"[!-~]++(?: [!-~]++){{{features - 1}}}", header.get(key, "")):
            raise InputError(where=where, key=key, found="another number", expected=f"{features}, one for each feature")
    sizes = _numbers(header, "tree_sizes", where)
    if bags < 1 or not len(sizes) or len(sizes) % (outputs * bags):
        expected = f"a multiple of {outputs * bags}, the trees of a round"
        raise InputError(where=where, key="tree_sizes", found=f"{len(sizes)} trees", expected=expected)
    start = len(head) + 2
    for number, size in enumerate(sizes.astype(np.int64).tolist()):
        tree = text[start : start + size]
        if size <= 0 or len(tree) != size or not tree.startswith(f"Tree={number}\n") or not tree.endswith("\n\n"):
            raise InputError(where=where, key="tree_sizes", found=f"{size} bytes of tree {number}", expected="its size")
        _check_tree(tree.rstrip("\n").split("\n")[1:], f"{where}, tree {number}", features)
        start += size
    if not _TAIL.fullmatch(text, start):
        raise InputError(where=where, key="tree_sizes", found="no such end after the last tree", expected=repr(END))


def _check_tree(lines: list[str], where: str, features: int) -> None:
    """InputError where the arrays of a tree are not those of its leaves, or its nodes make no tree."""
    known = frozenset((*_OF_NODES, *_OF_LEAVES, *_OF_CATEGORIES, "num_leaves", "num_cat", "is_linear", "shrinkage"))
    pairs = _pairs(lines, where, known)
    leaves, categories = _whole(pairs, "num_leaves", where), _whole(pairs, "num_cat", where)
    if leaves < 1 or _whole(pairs, "is_linear", where):
        raise InputError(where=where, key="num_leaves, is_linear", found=leaves, expected="1 or more, constant leaves")
    arrays = {key: _numbers(pairs, key, where) for key in pairs if key not in ("num_leaves", "num_cat", "is_linear")}
    # A tree of one leaf has none of its nodes' figures, and LightGBM does not read its leaf's.
    wanted = {"leaf_value": leaves, "shrinkage": 1}
    if leaves > 1:
        wanted |= dict.fromkeys(_OF_NODES, leaves - 1) | dict.fromkeys(_OF_LEAVES, leaves)
    for key, count in wanted.items():
        if len(arrays.get(key, ())) != count:
            found = f"{len(arrays.get(key, ()))} values"
            raise InputError(where=where, key=key, found=found, expected=f"{count}, of {leaves} leaves")
    if leaves > 1:
        _check_nodes(arrays, where, leaves, features)
        _check_categories(arrays, where, categories)


def _check_nodes(arrays: Mapping[str, NDArray[np.float64]], where: str, leaves: int, features: int) -> None:
    """InputError unless each node but the first, and each leaf, is the child of one node that comes before it."""
    split, decisions = arrays["split_feature"], arrays["decision_type"]
    _check_range(split, "split_feature", where, features)
    _check_range(decisions, "decision_type", where, _DECISIONS)
    children = np.concatenate([arrays["left_child"], arrays["right_child"]])
    nodes = np.tile(np.arange(leaves - 1), 2)
    inner = children >= 0
    expected = np.concatenate([np.arange(-leaves, 0), np.arange(1, leaves - 1)])
    if not np.array_equal(np.sort(children), expected) or not (children[inner] > nodes[inner]).all():
        wanted = "each node and leaf once, below a node that comes before it"
        raise InputError(where=where, key="left_child, right_child", found="no tree", expected=wanted)


def _check_categories(arrays: Mapping[str, NDArray[np.float64]], where: str, categories: int) -> None:
    """InputError unless each split by category has its words of bits."""
    by_category = arrays["decision_type"].astype(np.int64) & _CATEGORICAL != 0
    _check_range(arrays["threshold"][by_category], "threshold", where, categories)
    if not categories:
        return
    bounds, words = (arrays.get(key, np.empty(0)) for key in _OF_CATEGORIES)
    whole = len(bounds) == categories + 1 and bounds[0] == 0 and bounds[-1] == len(words)
    if not whole or not (np.diff(bounds) > 0).all():
        expected = f"the bounds of {categories} sets of categories"
        raise InputError(where=where, key="cat_boundaries", found="others", expected=expected)
    _check_range(words, "cat_threshold", where, 2**32)


def _check_range(values: NDArray[np.float64], key: str, where: str, end: int) -> None:
    """InputError unless all are whole numbers from 0 and below `end`."""
    wrong = (values < 0) | (values >= end) | (values != np.floor(values))
    if wrong.any():
        found = f"{values[wrong][0]:g}"
        raise InputError(where=where, key=key, found=found, expected=f"whole numbers from 0 to {end - 1}")


def _pairs(lines: list[str], where: str, known: frozenset[str]) -> dict[str, str]:
    """Lines `key=value` by key, each of `known` once at most."""
    pairs: dict[str, str] = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if not equals or key not in known or key in pairs:
            raise InputError(where=where, found=repr(line[:40]), expected=f"KEY=VALUE, a key once, of {sorted(known)}")
        pairs[key] = value
    return pairs


def _whole(pairs: Mapping[str, str], key: str, where: str) -> int:
    text = pairs.get(key, "")
    if not _WHOLE.fullmatch(text):
        raise InputError(where=where, key=key, found=repr(text[:40]), expected="a whole number")
    return int(text)


def _numbers(pairs: Mapping[str, str], key: str, where: str) -> NDArray[np.float64]:
    """The numbers of a line, all of them finite but for thresholds."""
    text = pairs.get(key, "")
    if not _NUMBERS.fullmatch(text):
        raise InputError(where=where, key=key, found=repr(text[:40]), expected="numbers with a space between")
    values = np.array(text.split(), dtype=np.float64)
    if key != "threshold" and not np.isfinite(values).all():
        raise InputError(where=where, key=key, found="a number too large", expected="finite numbers")
    return values
