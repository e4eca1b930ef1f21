"""The closed forms against the issue's counter-example, against a simulation, and by their properties."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.cells.latency import latency_crius, latency_default
from tests.oracles.pipeline_oracle import simulate_pipeline
from tests.seeds import seeds


def figures(compute_s: list[float], transfer_s: list[float]) -> tuple[list[float], list[float]]:
    """T_i, with its transfers, and c_i."""
    return [t + c for t, c in zip(compute_s, transfer_s, strict=True)], transfer_s


def test_the_papers_formula_rewards_a_slower_link() -> None:
    """Issue: compute 6 and 9, B = 16; a transfer of 4 in the first gives 109, half that transfer 152."""
    assert latency_crius(*figures([6, 9], [4, 0]), 16) == 109
    assert latency_crius(*figures([6, 9], [2, 0]), 16) == 152
    assert latency_crius(*figures([6, 9], [4, 0]), 16) < 16 * 9, "less than stage 1's compute alone"
    assert latency_default(*figures([6, 9], [4, 0]), 16) == 154
    assert latency_default(*figures([6, 9], [2, 0]), 16) == 152


def test_a_transfer_longer_than_all_compute_sets_the_pace() -> None:
    assert latency_default(*figures([2, 3], [0, 5]), 4) == 10 + 3 * 5


def test_crius_takes_the_most_compute_among_equally_long_stages() -> None:
    assert latency_crius(*figures([6, 9], [4, 1]), 16) == 20 + 15 * 9


def test_bubble_of_equal_stages() -> None:
    """GPipe: (S - 1) / (B + S - 1) of the iteration."""
    total_s = latency_default(*figures([3] * 4, [0] * 4), 8)
    assert (total_s - 8 * 3) / total_s == pytest.approx(3 / 11)


seconds = st.floats(0, 1e3)


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=6), st.integers(1, 64), st.data())
def test_formulas_and_default_is_monotone(
    stages: list[tuple[float, float]], micro_batches: int, data: st.DataObject
) -> None:
    compute, transfer = [t for t, _ in stages], [c for _, c in stages]
    times = [t + c for t, c in stages]
    default = latency_default(*figures(compute, transfer), micro_batches)
    pace = max(max(t, c) for t, c in stages)
    assert default == pytest.approx(sum(times) + (micro_batches - 1) * pace)
    slowest = max(range(len(stages)), key=lambda i: (times[i], times[i] - transfer[i]))
    crius = latency_crius(*figures(compute, transfer), micro_batches)
    assert crius == pytest.approx(sum(times) + (micro_batches - 1) * (times[slowest] - transfer[slowest]))

    changed = data.draw(st.sampled_from([compute, transfer]))
    changed[data.draw(st.integers(0, len(stages) - 1))] += data.draw(seconds)
    more = latency_default(*figures(compute, transfer), micro_batches)
    assert more >= default * (1 - 1e-12)


def test_simulation_of_equal_stages_without_transfers_is_the_closed_form() -> None:
    for stages in (1, 2, 5):
        closed = latency_default(*figures([3] * stages, [0] * stages), 12)
        for schedule in ("gpipe", "1f1b"):
            assert simulate_pipeline([1] * stages, [2] * stages, [0] * stages, 12, schedule) == closed


def test_how_far_the_closed_form_is_from_the_simulation() -> None:
    """The figures that the module's docstring states."""
    rng = random.Random(1)
    for _ in seeds(150):
        stages = rng.randint(2, 8)
        micro_batches = 4 * stages
        none = [0.0] * stages
        forward = [rng.uniform(0.7, 1) for _ in range(stages)]
        backward = [rng.uniform(1, 3) * f for f in forward]
        closed = latency_default(*figures([f + b for f, b in zip(forward, backward, strict=True)], none), micro_batches)
        gpipe = simulate_pipeline(forward, backward, none, micro_batches, "gpipe")
        one_f_one_b = simulate_pipeline(forward, backward, none, micro_batches, "1f1b")
        assert 1 - 1e-9 <= gpipe / closed < 1.11
        assert 0.93 < one_f_one_b / closed <= 1 + 1e-9

        backward = [2 * f for f in forward]
        closed = latency_default(*figures([3 * f for f in forward], none), micro_batches)
        assert simulate_pipeline(forward, backward, none, micro_batches, "gpipe") == pytest.approx(closed)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_transfers_cost_1f1b_more_than_the_closed_form(stages: int) -> None:
    transfer = [0.0, *[0.3] * (stages - 1)]
    closed = latency_default(*figures([3.0] * stages, transfer), 4 * stages)
    forward, backward = [1.0] * stages, [2.0] * stages
    assert simulate_pipeline(forward, backward, transfer, 4 * stages, "gpipe") == pytest.approx(closed)
    assert 1.03 < simulate_pipeline(forward, backward, transfer, 4 * stages, "1f1b") / closed < 1.07
