"""What `cellplan serve` shows, and the processes in which it has its questions answered (`planner.api.pages`)."""

from __future__ import annotations

from estimator.host.capacity import usable_cores
from estimator.host.user_process import UserProcess
from planner.report.page import app_html as app_html
from planner.report.page import require_jinja as require_jinja
from planner.report.page import script_text as script_text

AT_ONCE = min(max(usable_cores(), 2), 4)
"""So many questions are answered beside each other: a quick one need not wait for a search."""


class PageProcess(UserProcess):
    """A process that answers questions of the page, one after the other."""

    def __init__(self, *, limit_s: float) -> None:
        super().__init__(
            "planner.api.pages",
            name="serve",
            expected="an answer: this is a fault of cellplan's",
            limit_s=limit_s,
            more="cellplan serve --call-limit SECONDS gives it more",
        )
