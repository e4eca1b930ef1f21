"""Arnold's equations of a job's shape and volumes, as printed (section 5.1, eq. 1; appendix C, eq. 11 to 13).

The volumes as printed count elements or bytes, the paper does not say which; they are not per GPU (TP is left out), put
the embedding on every stage, and PP's is that of one message, not of an iteration: m and vp are defined and never used.
With two bytes an element they give 2.04 GB and 33.6 MB for its 7B model, where it has "2 GB" and "30 MB". What a plan
really sends is `planner.one_job.pods.matrix`'s.
"""

from __future__ import annotations

from profiles.errors import InputError
from profiles.records import dataclass

DEVICES_A_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedShape:
    """A job's communication matrix: `dp` is its degree, `rows` PP groups and `columns` DP groups of nodes."""

    dp: int
    rows: int
    columns: int


def matrix_shape(*, devices: int, tp: int, pp: int) -> PrintedShape:
    """Return DP = #GPUs / TP / PP, #row = DP / (8 / TP), #col = PP (eq. 1).

    Raise InputError where a division has a remainder, or TP is above a node's eight: eq. 1 knows no such job.

    >>> matrix_shape(devices=96, tp=8, pp=2)
    PrintedShape(dp=6, rows=6, columns=2)
    """
    if min(devices, tp, pp) < 1 or devices % (tp * pp):
        _refuse("devices", f"{devices} with tp={tp}, pp={pp}", "a multiple of tp * pp, all at least 1")
    if DEVICES_A_NODE % tp:
        _refuse("tp", tp, f"a divisor of a node's {DEVICES_A_NODE} devices")
    dp, replicas_a_node = devices // tp // pp, DEVICES_A_NODE // tp
    if dp % replicas_a_node:
        _refuse("dp", dp, f"a multiple of 8 / tp = {replicas_a_node}: whole nodes")
    return PrintedShape(dp=dp, rows=dp // replicas_a_node, columns=pp)


def micro_batches(*, global_batch: int, micro_batch: int, dp: int) -> float:
    """Return m = gb / (mb * dp) (eq. 11), which the paper defines and never uses."""
    return global_batch / (micro_batch * dp)


def dp_volume(*, hidden: int, vocabulary: int, sequence: int, layers: int, pp: int) -> float:
    """Return DP-volume = h(V + s) + l/pp * (4h^2 + 2h + 8h^2 + 7h) (eq. 12): elements of a dense GPT's stage.

    >>> f"{2 * dp_volume(hidden=4096, vocabulary=50257, sequence=2048, layers=32, pp=8) / 1e9:.2f} GB"
    '2.04 GB'
    """
    h = hidden
    return h * (vocabulary + sequence) + layers / pp * (4 * h**2 + 2 * h + 8 * h**2 + 7 * h)


def pp_volume(*, micro_batch: int, sequence: int, hidden: int) -> int:
    """Return PP-volume = 2 * mb * s * h (eq. 13): elements, an activation and its gradient of one micro-batch.

    >>> f"{2 * pp_volume(micro_batch=1, sequence=2048, hidden=4096) / 1e6:.1f} MB"
    '33.6 MB'
    """
    return 2 * micro_batch * sequence * hidden


def _refuse(key: str, found: object, expected: str) -> None:
    raise InputError(where="arnold's eq. 1", key=key, found=found, expected=expected)
