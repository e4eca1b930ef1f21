"""A plan as a Python script for Ray: a placement group with a bundle for each node of the plan, and a worker for each
rank on its bundle.

One group, not one for each stage: Ray reserves a group as a whole or not at all, and stages that share a node stay on
it. A bundle is never split over nodes, so that each stage sits as the plan has it: STRICT_PACK for one node,
STRICT_SPREAD for several, each on a node of its own. Names are those of ray.util.placement_group,
ray.util.scheduling_strategies and ray.util.accelerators of Ray 2.60.
"""

from __future__ import annotations

import json

from planner.one_job.launchers.gpu_names import RAY_TYPES
from planner.one_job.launchers.node_layout import (
    PLACEHOLDER,
    describe,
    device_notes,
    job_name,
    lay_out,
    script_note,
)
from planner.one_job.tools.base.export_records import Export, ExportContext, ExportFile
from planner.one_job.tools.base.nodes import Layout
from planner.shared.plan import Plan

TOOL = "ray"

ANY_SHARE = 0.001
"""Of the resource accelerator_type:NAME, of which a node has one: enough to be put on such a node."""

_ENVIRONMENT = """\
# The job's level on the network, in the environment of every rank.
ENVIRONMENT = {variables}
"""
_UPDATE = "        os.environ.update(ENVIRONMENT)\n"

_SCRIPT = '''\
"""{title}

Run it as a Ray job: ray job submit --working-dir . -- python {file} ARGUMENTS
"""

import os
import runpy
import socket
import sys

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

SCRIPT = {script}
STRATEGY = {strategy}
# What each node of the plan must have.
BUNDLES = [
{bundles}
]
# The bundle of each rank, and the stage that it works on.
RANK_TO_BUNDLE = {ranks}
RANK_TO_STAGE = {stages}
{environment}

@ray.remote(num_cpus=1, num_gpus=1, max_restarts=0)
class Worker:
    """One rank. Ray shows it its own GPU only, so that its local rank is 0."""

    def address(self):
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def run(self, rank, address, port, arguments):
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(len(RANK_TO_BUNDLE)),
            LOCAL_RANK="0",
            LOCAL_WORLD_SIZE="1",
            MASTER_ADDR=address,
            MASTER_PORT=str(port),
        )
{update}        sys.argv = [SCRIPT, *arguments]
        runpy.run_path(SCRIPT, run_name="__main__")


def main(arguments):
    ray.init()
    group = placement_group(BUNDLES, strategy=STRATEGY, name={name})
    ray.get(group.ready())
    try:
        workers = [
            Worker.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=bundle
                )
            ).remote()
            for bundle in RANK_TO_BUNDLE
        ]
        address, port = ray.get(workers[0].address.remote())
        ray.get([worker.run.remote(rank, address, port, arguments) for rank, worker in enumerate(workers)])
    finally:
        remove_placement_group(group)


if __name__ == "__main__":
    main(sys.argv[1:])
'''


def export_ray(plan: Plan, context: ExportContext) -> Export:
    """The script. Its arguments go to the training script.

    CannotExpress for a plan over several sites, on this machine's own devices, or on TPUs.
    """
    layout = lay_out(plan, TOOL)
    name = job_name(plan)
    file = f"{name.replace('-', '_')}_ray.py"
    stage_of = {rank: number for number, stage in enumerate(plan.stages) for rank in stage.ranks}
    text = _SCRIPT.format(
        title=describe(plan, layout).replace("\\", "").replace('"', "'"),
        file=file,
        script=json.dumps(context.script or PLACEHOLDER),
        strategy=json.dumps("STRICT_PACK" if len(layout.nodes) == 1 else "STRICT_SPREAD"),
        bundles=_bundles(layout),
        ranks=_list([node for node, _ in layout.places]),
        stages=_list([stage_of[rank] for rank in range(layout.world_size)]),
        name=json.dumps(name),
        environment=_ENVIRONMENT.format(variables=json.dumps(dict(context.environment))) if context.environment else "",
        update=_UPDATE if context.environment else "",
    )
    return Export(files=(ExportFile(name=file, text=text),), notes=_notes(plan, context, layout))


def bundles(layout: Layout) -> list[dict[str, float]]:
    """What each node must have, in the order of `layout.nodes`."""
    node_bundles: list[dict[str, float]] = []
    for node in layout.nodes:
        kind = RAY_TYPES.get(node.device)
        share = {f"accelerator_type:{kind}": ANY_SHARE} if kind else {}
        node_bundles.append({"CPU": len(node.ranks), "GPU": len(node.ranks), **share})
    return node_bundles


def _bundles(layout: Layout) -> str:
    return "\n".join(f"    {json.dumps(bundle)}," for bundle in bundles(layout))


def _list(numbers: list[int]) -> str:
    """A list of numbers in lines of 20."""
    rows = [", ".join(map(str, numbers[first : first + 20])) for first in range(0, len(numbers), 20)]
    return f"[{rows[0]}]" if len(rows) == 1 else "[\n    " + ",\n    ".join(rows) + ",\n]"


def _notes(plan: Plan, context: ExportContext, layout: Layout) -> tuple[str, ...]:
    notes = [
        *script_note(context.script),
        "each worker sees its own GPU only: LOCAL_RANK is 0 on all of them",
        "one CPU goes with each GPU: raise CPU in BUNDLES and num_cpus together where data loading needs more",
    ]
    devices = list(dict.fromkeys(node.device for node in layout.nodes))
    unknown = [device for device in devices if device not in RAY_TYPES]
    if unknown:
        notes.append(f"Ray has no accelerator type for {', '.join(unknown)}: its bundles take any GPUs")
    shared = [device for device in devices if device in RAY_TYPES and _others(device)]
    if shared:
        said = ", ".join(f"{RAY_TYPES[device]} for {device}" for device in shared)
        notes.append(f"Ray's accelerator types do not tell memory or form: {said}")
    return (*notes, *device_notes(plan, layout, "Ray"))


def _others(device: str) -> bool:
    """Whether other devices have the same accelerator type."""
    return list(RAY_TYPES.values()).count(RAY_TYPES[device]) > 1
