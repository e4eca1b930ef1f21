"""The solver of linear programmes, which is heavy and optional."""

from __future__ import annotations

from typing import Any

from profiles.errors import InputError


def linear_programmes() -> tuple[Any, Any]:
    """Return scipy's `linprog` and `csr_array`. Raise InputError where scipy is missing."""
    try:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array
    except ModuleNotFoundError:
        raise InputError(where="contention", found="no scipy", expected="pip install 'cellplan[network]'") from None
    return linprog, csr_array
