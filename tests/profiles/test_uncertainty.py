"""The committed half-widths, and which class a run falls into."""

from __future__ import annotations

import pytest

from profiles.uncertainty import ANY, HalfWidth, Uncertainty, load_uncertainty, parse_uncertainty


def half_width(device: str, work: str, width: float) -> HalfWidth:
    return HalfWidth(device=device, work=work, log_half_width=width, rows=20, sources=("X",))


KNOWN = Uncertainty(
    launch_share=0.1,
    communication_share=0.2,
    time=(
        half_width("a100", "compute", 0.05),
        half_width("a100", ANY, 0.1),
        half_width(ANY, "compute", 0.2),
        half_width(ANY, "convolution", 0.7),
        half_width(ANY, ANY, 0.4),
    ),
    memory=(half_width(ANY, ANY, 0.3),),
)


@pytest.mark.parametrize(
    ("device", "work", "width"),
    [
        ("a100", "compute", 0.05),
        ("a100", "launch", 0.1),
        ("h100", "compute", 0.2),
        ("h100", "launch", 0.4),
        ("a100", "convolution", 0.7),
        ("h100", "convolution", 0.7),
        ("a100", "experts", 0.4),
    ],
)
def test_the_nearest_class_is_taken(device: str, work: str, width: float) -> None:
    assert KNOWN.time_half_width(device, work).log_half_width == width


def test_memory_falls_back_to_anything() -> None:
    assert KNOWN.memory_half_width("a100", "experts").log_half_width == 0.3


def test_without_a_class_for_anything_it_is_refused() -> None:
    with pytest.raises(ValueError, match="memory: no entry for any device"):
        Uncertainty(launch_share=0.1, communication_share=0.2, time=KNOWN.time, memory=(half_width("a100", ANY, 0.1),))


@pytest.mark.parametrize("width", [0.0, -0.1, float("inf"), float("nan")])
def test_a_width_is_finite_and_above_0(width: float) -> None:
    with pytest.raises(ValueError, match="log_half_width"):
        half_width("a100", ANY, width)


def test_the_committed_file_has_the_classes_that_all_fall_back_to() -> None:
    known = load_uncertainty()
    assert 0 < known.time_half_width("no such device", "compute").log_half_width < 3
    assert 0 < known.memory_half_width("no such device", "dense").log_half_width < 1


def test_a_key_that_is_not_known_is_refused() -> None:
    text = (
        'launch_share = 0.1\ncommunication_share = 0.2\nmemory = []\n[[time]]\ndevice = "*"\nwidth = 1\nsources = []\n'
    )
    with pytest.raises(TypeError):
        parse_uncertainty(text)
