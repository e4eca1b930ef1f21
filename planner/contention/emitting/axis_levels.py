"""Levels by axis as Python: options of process groups, whose communicators have a traffic class each."""

from __future__ import annotations

import json

from planner.contention.emitting.environment import has_axis_levels, level_of
from planner.contention.emitting.nccl_release import Release
from planner.contention.emitting.planned import PlannedJob
from planner.contention.emitting.priority_map import PriorityMap
from planner.contention.emitting.transports import Transport
from profiles.errors import InputError

_SNIPPET = '''\
"""Traffic classes of the process groups of a job, by axis: {what}.

PyTorch with NCCL 2.26 or later:

    dist.new_group(ranks, pg_options=options("{axis}"))
    init_device_mesh("cuda", shape, mesh_dim_names=names, backend_override={{"{axis}": options("{axis}")}})

NCCL_IB_TC must not be set: NCCL releases differ in which of the two wins.
"""

import os

import torch.distributed as dist

JOB = {job}
TRAFFIC_CLASS = {classes}
{others}

def options(axis):
    """Return the options of a process group of an axis. {otherwise}"""
    if "NCCL_IB_TC" in os.environ:
        raise RuntimeError("NCCL_IB_TC is set, too: unset it, or do without levels by axis")
    made = dist.ProcessGroupNCCL.Options()
    made.config.traffic_class = {chosen}
    return made
'''


def axis_levels_snippet(
    job: PlannedJob, of: PriorityMap, transport: Transport, release: Release | None = None
) -> str | None:
    """Return the module that a training script imports, None for a job of one level or where NCCL's InfiniBand layer is
    not what sends, or is older. InputError for a level that the map has not."""
    if not has_axis_levels(job, transport, release):
        return None
    infiniband = transport == "infiniband"
    classes = {}
    for axis, level in job.axis_levels:
        if not axis.isidentifier():
            raise InputError(where=f"job {job.id}", key="axis_levels", found=repr(axis), expected="an axis, such as dp")
        queue = level_of(level, of, job)
        classes[axis] = queue.priority if infiniband else queue.tos
    own = None if job.level is None else level_of(job.level, of, job)
    others = "" if own is None else f"OTHER_AXES = {own.priority if infiniband else own.tos}\n"
    return _SNIPPET.format(
        others=others,
        otherwise="KeyError for one that the plan gives no level."
        if own is None
        else "Other axes have the job's level.",
        chosen="TRAFFIC_CLASS[axis]" if own is None else "TRAFFIC_CLASS.get(axis, OTHER_AXES)",
        what="service levels of InfiniBand" if infiniband else "four times the DSCP",
        axis=job.axis_levels[0][0],
        job=json.dumps(job.id),
        classes=json.dumps(classes),
    )
