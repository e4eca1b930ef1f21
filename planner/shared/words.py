"""Words for people that results and what is printed of them share."""

from __future__ import annotations

RUN_PARTS = {
    "compute_s": "compute",
    "tp_s": "tensor-parallel communication",
    "waiting_s": "waiting for other stages",
    "dp_s": "gradients and weights of the replicas",
    "optimizer_s": "optimizer",
    "other_s": "other",
}
"""Parts of a measured iteration, and their names for people."""


TIME_NAMES = {
    "gemm_s": "matrix products",
    "attention_s": "attention",
    "convolution_s": "convolutions",
    "memory_bound_s": "memory-bound operators",
    "recompute_s": "recomputation",
    "launch_s": "kernel launches",
    "tp_s": "tensor-parallel communication",
    "cp_s": "context-parallel communication",
    "ep_s": "expert-parallel communication",
    "dp_s": "data-parallel communication",
    "pp_s": "pipeline communication",
    "bubble_s": "pipeline bubble",
    "optimizer_s": "optimizer",
    "offload_s": "offload",
}
"""Parts of an estimated iteration, and their names for people."""


SAFE_TAKEN = "the memory of this plan is safe"
"""How the assumption begins that says why a plan was taken that is not quite the fastest."""


RUN_BY = "fine-tuning tools that run this plan:"
RUN_BY_NONE = "none of the fine-tuning tools runs this plan"
"""How the assumption begins that says whose files the plan of a fine-tuning can be."""


def percent(share: float) -> str:
    """A change with its sign, in as many digits as it takes to see it.

    >>> percent(-0.0123), percent(0.0004), percent(0.0), percent(1.5)
    ('-1.2%', '+0.04%', '0%', '+150%')
    """
    if abs(share) < 5e-5:
        return "0%"
    digits = 2 if abs(share) < 1e-3 else 1 if abs(share) < 1 else 0
    return f"{share:+.{digits}%}"


def format_seconds(seconds: float | None) -> str:
    """Seconds with a fitting unit, three digits.

    >>> format_seconds(0.0123), format_seconds(7.5), format_seconds(2.5e-6), format_seconds(None)
    ('12.3 ms', '7.5 s', '2.5 us', '-')
    """
    if seconds is None:
        return "-"
    if seconds == 0:
        return "0 s"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{three_digits(seconds / size)} {unit}"
    return f"{three_digits(seconds / 1e-6)} us"


def three_digits(value: float) -> str:
    """Return a number in three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def format_figure(value: float | None, form: str) -> str:
    """A number in Python's format `form`; "-" for None.

    >>> format_figure(0.5, ".1%"), format_figure(None, ".1%")
    ('50.0%', '-')
    """
    return "-" if value is None else format(value, form)


def format_bytes(count: float | None) -> str:
    """Bytes in binary units, three digits.

    >>> format_bytes(80 * 2**30), format_bytes(1536), format_bytes(12)
    ('80 GiB', '1.5 KiB', '12 B')
    """
    if count is None:
        return "-"
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{three_digits(count / size)} {unit}"
    return f"{three_digits(count)} B"


def format_range(low: str, high: str) -> str:
    """From the one to the other, with one unit where it is the same.

    >>> format_range("30 GiB", "44.3 GiB"), format_range("4", "4"), format_range("900 MiB", "1.2 GiB")
    ('30-44.3 GiB', '4', '900 MiB to 1.2 GiB')
    """
    if low == high:
        return low
    (least, _, unit), (_, _, other) = low.partition(" "), high.partition(" ")
    return f"{least}-{high}" if unit == other else f"{low} to {high}"


def format_count(count: float | None, of: str = "") -> str:
    """A large count or rate in powers of a thousand, three digits, and what it counts.

    >>> format_count(8.03e9), format_count(312e12, "FLOP"), format_count(950, "FLOP")
    ('8.03 G', '312 TFLOP', '950 FLOP')
    """
    if count is None:
        return "-"
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{three_digits(count / size)} {prefix}{of}"
    return f"{three_digits(count)} {of}".rstrip()
