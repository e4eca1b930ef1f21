"""A decision held against its view: what a policy or a file may say, and what it may not."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.network.steps import Mover, Step, Transfer
from planner.contention.checked_decision import check_decision
from planner.contention.policies.records import Contender, Decision, View
from profiles.errors import InputError
from profiles.records import replace

PATHS = (((0, 1.0),), ((1, 1.0),))


def contender(name: str, alone_s: float = 1.0) -> Contender:
    transfer = Transfer(movers=(Mover(way=((0, 1e9),), seconds=0.5),))
    return Contender(
        id=name,
        devices=8,
        flops=1e12,
        alone_s=alone_s,
        steps=(Step(compute_s=0.5, begins_s=0.5, transfers=(transfer,)),),
        paths=(PATHS,),
        now=(0,),
        axes=("dp",),
    )


VIEW = View(jobs=(contender("a"), contender("b")), bytes_per_s=(1e9, 1e9), levels=2)
GOOD = Decision(
    paths=((0,), (None,)),
    levels=(1, None),
    offsets_s=(0.5, 0),
    order=(1, 0),
    axis_levels=((("dp", 0),), ()),
    periods_s=(1.5, None),
)


def test_a_decision_that_is_one_comes_back() -> None:
    assert check_decision(GOOD, VIEW, where="policy p") is GOOD


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"paths": ((0,),)}, "paths"),
        ({"paths": ((0, 0), (0,))}, "paths of job a"),
        ({"paths": ((2,), (0,))}, "paths of job a"),
        ({"paths": ((0,), (-1,))}, "paths of job b"),
        ({"paths": ((True,), (0,))}, "paths of job a"),
        ({"levels": (2, None)}, "levels of job a"),
        ({"levels": (0, -1)}, "levels of job b"),
        ({"levels": (0, 0.5)}, "levels of job b"),
        ({"levels": (0,)}, "levels"),
        ({"offsets_s": (float("nan"), 0.0)}, "offsets_s of job a"),
        ({"offsets_s": (0.0, -0.1)}, "offsets_s of job b"),
        ({"offsets_s": ()}, "offsets_s"),
        ({"order": (0, 0)}, "order"),
        ({"order": (2,)}, "order"),
        ({"axis_levels": ((("dp", 2),), ())}, "levels of job a, axis dp"),
        ({"axis_levels": ((("ep", 0),), ())}, "axis_levels of job a"),
        ({"periods_s": (0.0, None)}, "periods_s of job a"),
        ({"periods_s": (float("inf"), None)}, "periods_s of job a"),
    ],
)
def test_what_is_none_names_the_job(change: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as raised:
        check_decision(replace(GOOD, **change), VIEW, where="policy p")
    assert (raised.value.where, raised.value.key) == ("policy p", key)


def test_no_offset_for_a_job_without_a_period() -> None:
    """It gets nowhere, even alone: there is no iteration to shift."""
    stuck = replace(VIEW, jobs=(contender("a", float("inf")), contender("b")))
    for change in ({"offsets_s": (0.5, 0.0), "periods_s": ()}, {"offsets_s": (0.0, 0.0)}):
        with pytest.raises(InputError, match="a job with a period"):
            check_decision(replace(GOOD, **change), stuck, where="policy p")
    check_decision(replace(GOOD, offsets_s=(0.0, 0.5), periods_s=()), stuck, where="policy p")


def test_levels_without_limit() -> None:
    unlimited = replace(VIEW, levels=None)
    check_decision(replace(GOOD, levels=(40, 41)), unlimited, where="policy p")
