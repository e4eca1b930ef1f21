"""Processes for code of the user's: what it did to Python itself."""

from __future__ import annotations

import builtins

from estimator.host.answering import changed_builtins


def test_what_is_changed_is_told_and_put_back() -> None:
    names, changed = vars(builtins), changed_builtins()
    length, total = len, sum
    names["len"] = None
    names["cellplan_was_here"] = 1
    del names["sum"]
    told = changed()
    assert told == ("cellplan_was_here", "len", "sum")
    assert (len, sum) == (length, total)
    assert "cellplan_was_here" not in names
    assert changed() == ()
