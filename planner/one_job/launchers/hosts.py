"""A plan as host files: its nodes in the order of its ranks, for torchrun, DeepSpeed and MPI, and a rank file for MPI.

torchrun's arguments are those of torch.distributed.run 2.5; `HOST slots=N` is read by DeepSpeed (launcher/runner.py, a
host file's lines in their order) and by Open MPI, whose mpirun(1) has the rank file's `rank N=HOST slot=S`.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.one_job.launchers.named_hosts import hosts_of, megatrons_order
from planner.one_job.launchers.node_layout import MASTER_PORT, PLACEHOLDER, describe, gpus_of_nodes, job_name, lay_out
from planner.one_job.tools.base.export_records import CannotExpress, Export, ExportContext, ExportFile
from planner.one_job.tools.base.nodes import Layout
from planner.shared.plan import Plan

TOOL = "hosts"


def export_hosts(plan: Plan, context: ExportContext) -> Export:
    """The files: hosts alone, one a line, rank 0's first; hosts with their slots; the rank file.

    Where nodes give other devices than their first ones, or not as many each, a script for each host to read sets
    CUDA_VISIBLE_DEVICES, the node's number, and its ranks.

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
    ranks, gpus = layout.world_size, gpus_of_nodes(plan, layout)
    if any(indices != tuple(range(slots[0])) for indices in gpus):
        return _picked(plan, context, layout, hosts, gpus, files)
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


def _picked(
    plan: Plan,
    context: ExportContext,
    layout: Layout,
    hosts: Sequence[str],
    gpus: Sequence[tuple[int, ...]],
    files: Sequence[ExportFile],
) -> Export:
    """The files of a plan on certain GPUs of each node: nobody but the script picks them."""
    name, script = job_name(plan), context.script or PLACEHOLDER
    lines = [
        f"# {describe(plan, layout)}",
        "# Read by the shell of every host: which GPUs are the job's there, which node it is, how many ranks it has.",
        'case "$(hostname)" in',
        *(
            f"  {host}) export CUDA_VISIBLE_DEVICES={','.join(map(str, indices))} NODE_RANK={number}"
            f" RANKS_HERE={len(indices)} ;;"
            for number, (host, indices) in enumerate(zip(hosts, gpus, strict=True))
        ),
        '  *) echo "$(hostname) is no host of the plan" >&2; exit 1 ;;',
        "esac",
    ]
    setting = ExportFile(name=f"{name}.gpus.sh", text="\n".join(lines) + "\n")
    mpi = (
        f"mpirun -np {layout.world_size} --rankfile {name}.rankfile --bind-to none"
        f" bash -c '. ./{name}.gpus.sh && exec python {script}'"
    )
    notes = [megatrons_order(plan), f"{name}.gpus.sh sets CUDA_VISIBLE_DEVICES on every host: it must be there, too"]
    if layout.node_major:
        include = "@".join(f"{host}:{','.join(map(str, some))}" for host, some in zip(hosts, gpus, strict=True))
        notes += [
            f"torchrun, on every host: . ./{name}.gpus.sh && torchrun --nnodes={len(hosts)}"
            ' --nproc-per-node="$RANKS_HERE" --node-rank="$NODE_RANK"'
            f" --master-addr={hosts[0]} --master-port={MASTER_PORT} {script}",
            f'DeepSpeed, its host file with all slots of the hosts: deepspeed --include="{include}" {script}',
            f"Open MPI: {mpi}",
        ]
    else:
        notes.append(f"ranks do not follow the nodes, which torchrun and DeepSpeed want; Open MPI: {mpi}")
    return Export(files=(*files, setting), notes=tuple(notes))
