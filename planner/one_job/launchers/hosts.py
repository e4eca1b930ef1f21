"""A plan as host files: its nodes in the order of its ranks, for torchrun, DeepSpeed and MPI, and a rank file for MPI.

torchrun's arguments are those of torch.distributed.run 2.5; `HOST slots=N` is read by DeepSpeed (launcher/runner.py, a
host file's lines in their order) and by Open MPI, whose mpirun(1) has the rank file's `rank N=HOST slot=S`.
"""

from __future__ import annotations

from planner.one_job.launchers.named_hosts import hosts_of, megatrons_order
from planner.one_job.launchers.node_layout import MASTER_PORT, PLACEHOLDER, job_name, lay_out
from planner.one_job.tools.base.export_records import CannotExpress, Export, ExportContext, ExportFile
from planner.shared.plan import Plan

TOOL = "hosts"


def export_hosts(plan: Plan, context: ExportContext) -> Export:
    """The files: hosts alone, one a line, rank 0's first; hosts with their slots; the rank file.

    CannotExpress for a plan over several sites, on this machine's own devices, on TPUs, or whose nodes have no names.
    """
    layout = lay_out(plan, TOOL)
    hosts = hosts_of(plan, layout)
    if hosts is None:
        expected = "the names of the plan's nodes: place it on a cluster whose nodes have names (--topology)"
        raise CannotExpress(tool=TOOL, key="devices[].host", found="none", expected=expected)
    name, script = job_name(plan), context.script or PLACEHOLDER
    slots = [len(node.ranks) for node in layout.nodes]
    files = [
        ExportFile(name=f"{name}.hosts", text="".join(f"{host}\n" for host in hosts)),
        ExportFile(
            name=f"{name}.hostfile",
            text="".join(f"{host} slots={count}\n" for host, count in zip(hosts, slots, strict=True)),
        ),
        ExportFile(
            name=f"{name}.rankfile",
            text="".join(
                f"rank {rank}={hosts[node]} slot={local}\n" for rank, (node, local) in enumerate(layout.places)
            ),
        ),
    ]
    ranks = layout.world_size
    mpi = f"mpirun -np {ranks} --rankfile {name}.rankfile --bind-to none python {script}"
    notes = [megatrons_order(plan)]
    if layout.node_major:
        notes += [
            f"torchrun, on every host: torchrun --nnodes={len(hosts)} --nproc-per-node={slots[0]}"
            f' --node-rank=$(($(grep -nxF "$(hostname)" {name}.hosts | cut -d: -f1) - 1))'
            f" --master-addr={hosts[0]} --master-port={MASTER_PORT} {script}",
            f"DeepSpeed: deepspeed --hostfile {name}.hostfile {script}",
            f"Open MPI: {mpi}; slots of the rank file count a node's ranks, and bind none",
        ]
    else:
        notes.append(f"ranks do not follow the nodes, which torchrun and DeepSpeed want; Open MPI: {mpi}")
    return Export(files=tuple(files), notes=tuple(notes))
