"""A plan's timeline as a notebook shows it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from planner import api
from planner.shared.words import format_seconds
from profiles.records import dataclass

if TYPE_CHECKING:
    from planner.one_job.timeline.events import Timeline
    from planner.shared.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """When each stage works on which micro-batch: the record, and the picture of it."""

    timeline: Timeline

    @property
    def svg(self) -> str:
        """The picture, which stands by itself."""
        from planner.one_job.timeline.svg import draw_timeline

        return draw_timeline(self.timeline)

    def save(self, path: str | Path) -> Path:
        """Write it to `path`, a picture (.svg) or a trace for Perfetto (.json, .json.gz), and return the path."""
        from planner.one_job.timeline.save import save_timeline

        target = Path(path)
        save_timeline(self.timeline, target)
        return target

    def __repr__(self) -> str:
        shown = self.timeline
        return (
            f"<cellplan.Drawing: {shown.model} on {shown.cluster}, {len(shown.stages)} stages,"
            f" {shown.micro_batches} micro-batches, {format_seconds(shown.iteration_time_s)}>"
        )

    def _repr_html_(self) -> str:
        return self.svg[self.svg.index("<svg") :]


def draw(plan: Plan, path: str | Path | None) -> Drawing:
    """Return the drawing of `plan`, and write it to `path` where one is named."""
    return Drawing(timeline=api.timeline(plan, output=None if path is None else Path(path)))
