"""A plan as a Slurm batch script.

Where the plan's ranks follow its nodes, each node starts one torchrun; else every GPU gets a task of its own, laid out
by a host file (`--distribution=arbitrary` with SLURM_HOSTFILE). Where the plan names its nodes the job asks for these
(`--nodelist`), and a host file keeps them in the order of the ranks. Nodes that differ in device or in the number of
ranks are components of a heterogeneous job. Options and variables are those of the man pages sbatch(1) and srun(1) of
Slurm 22.05 and of its page "Heterogeneous Job Support"; torchrun's are those of torch.distributed.run 2.5.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from planner.one_job.launchers.named_hosts import by_name, cost_of_order, hosts_of, megatrons_order, words_in_lines
from planner.one_job.launchers.node_layout import (
    PLACEHOLDER,
    describe,
    device_notes,
    job_name,
    lay_out,
    nodes_of_tp,
    script_note,
    takes_whole_nodes,
)
from planner.one_job.tools.base.export_records import Export, ExportContext, ExportFile
from planner.one_job.tools.base.nodes import Layout, NodeRanks
from planner.shared.plan import Plan
from profiles.host_lists import host_list

TOOL = "slurm"

_TORCHRUN = """\
gpus=$1; shift
exec torchrun --nnodes={nodes} --nproc-per-node="$gpus" --node-rank="$SLURM_PROCID" \\
  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"
"""

_BY_HOST = """\
node=0
for host in $HOSTS; do [ "$host" = "$SLURMD_NODENAME" ] && break; node=$((node + 1)); done
"""

_TORCHRUN_BY_HOST = (
    "gpus=$1; shift\n"
    + _BY_HOST
    + """\
exec torchrun --nnodes={nodes} --nproc-per-node="$gpus" --node-rank="$node" \\
  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"
"""
)

_TASK_BY_HOST = (
    _BY_HOST
    + """\
IFS=";" read -ra ranks_of_nodes <<< "$RANKS_OF_NODES"
ranks=(${ranks_of_nodes[node]})
export LOCAL_WORLD_SIZE=$1 RANK=${ranks[SLURM_LOCALID]} LOCAL_RANK=$SLURM_LOCALID
shift
exec python "$@"
"""
)

_TASK = """\
{arrays}
export LOCAL_WORLD_SIZE=$1 RANK={rank} LOCAL_RANK=${{local_ranks[SLURM_PROCID]}}
shift
exec python "$@"
"""


def export_slurm(plan: Plan, context: ExportContext) -> Export:
    """The batch script. Arguments after its name go to the training script: `sbatch NAME.sbatch --lr 1e-4`.

    CannotExpress for a plan over several sites, on this machine's own devices, or on TPUs.
    """
    layout = lay_out(plan, TOOL)
    hosts = hosts_of(plan, layout)
    name = job_name(plan)
    script = shlex.quote(context.script or PLACEHOLDER)
    if hosts is not None and len(layout.parts) > 1:
        launch = _lines_by_host(layout, script)
    else:
        launch = _torchrun_lines(layout, script, hosts) if layout.node_major else _task_lines(layout, script)
    lines = [
        "#!/bin/bash",
        f"# {describe(plan, layout)}",
        *_directives(layout, name, hosts, whole=bool(takes_whole_nodes(plan))),
        *_reservation(name, hosts),
        "",
        "set -euo pipefail",
        "",
    ]
    text = "\n".join([*lines, *_hosts(layout, hosts), *_environment(context), *launch]) + "\n"
    return Export(files=(ExportFile(name=f"{name}.sbatch", text=text),), notes=_notes(plan, context, layout, hosts))


def gres_type(device: str) -> str:
    """What a cluster is likely to call a device in its GRES: the catalogue's name without memory, form and hyphens.

    >>> gres_type("a100-80gb"), gres_type("h100-pcie"), gres_type("rtx-3090")
    ('a100', 'h100', 'rtx3090')
    """
    first, *rest = device.split("-")
    return first + rest[0] if first == "rtx" and rest else first


def _directives(layout: Layout, name: str, hosts: Sequence[str] | None, *, whole: bool) -> list[str]:
    lines, first = [f"--job-name={name}", "--output=%x-%j.out"], 0
    for number, part in enumerate(layout.parts):
        gpus = len(part[0].ranks)
        lines += ["hetjob"] if number else []
        named = [] if hosts is None else [f"--nodelist={host_list(by_name(hosts[first : first + len(part)]))}"]
        first += len(part)
        lines += [
            f"--nodes={len(part)}",
            *named,
            f"--ntasks-per-node={1 if layout.node_major else gpus}",
            f"--gres=gpu:{gres_type(part[0].device)}:{gpus}",
            *(["--exclusive", "--mem=0"] if whole else []),
        ]
    return [f"#SBATCH {line}" for line in lines]


def _reservation(name: str, hosts: Sequence[str] | None) -> list[str]:
    """How the nodes are held until then, as comments; two marks keep sbatch from asking for what may not be there."""
    if hosts is None:
        return []
    return [
        "# Held beforehand by an administrator (place --running FILE --reserve says from when):",
        f"#   scontrol create reservation ReservationName={name} StartTime=now Duration=UNLIMITED Users=$USER \\",
        f"#     Nodes={host_list(by_name(hosts))}",
        f"##SBATCH --reservation={name}",
    ]


def _environment(context: ExportContext) -> list[str]:
    """Variables of every rank; srun hands them on."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in context.environment]
    return ["# The job's level on the network.", *lines, ""] if lines else []


def _hosts(layout: Layout, hosts: Sequence[str] | None) -> list[str]:
    if hosts is not None:
        return [
            "# The plan's nodes in the order of its ranks.",
            f"hosts=(\n  {words_in_lines(hosts)}\n)",
            'export MASTER_ADDR="${hosts[0]}" MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))',
            "",
        ]
    first = "SLURM_JOB_NODELIST" if len(layout.parts) == 1 else "SLURM_JOB_NODELIST_HET_GROUP_0"
    return [
        "# The plan's nodes in the order of the hosts that Slurm gives.",
        f'mapfile -t hosts < <(scontrol show hostnames "${first}")',
        'export MASTER_ADDR="${hosts[0]}" MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))',
        "",
    ]


def _torchrun_lines(layout: Layout, script: str, hosts: Sequence[str] | None) -> list[str]:
    launch = _launch(_TORCHRUN.format(nodes=len(layout.nodes)))
    if hosts is None:
        said = "# One torchrun on each node; SLURM_PROCID counts the nodes."
        return [said, *launch, *_srun(layout, script, "--cpu-bind=none")]
    return [
        "# One torchrun on each node; SLURM_PROCID counts the lines of the host file.",
        *_host_file('"${hosts[@]}"'),
        *launch,
        *_srun(layout, script, f"--ntasks={len(hosts)} --distribution=arbitrary --cpu-bind=none"),
    ]


def _lines_by_host(layout: Layout, script: str) -> list[str]:
    """Of several components, whose nodes Slurm numbers by name: each task finds its node by the host's name."""
    tables = ["# Each node finds itself among the hosts.", 'export HOSTS="${hosts[*]}"']
    if layout.node_major:
        launch = _launch(_TORCHRUN_BY_HOST.format(nodes=len(layout.nodes)))
        return [*tables, *launch, *_srun(layout, script, "--cpu-bind=none")]
    ranks = ";".join(" ".join(map(str, node.ranks)) for node in layout.nodes)
    tables += [f"export WORLD_SIZE={layout.world_size}", f'export RANKS_OF_NODES="{ranks}"']
    return [*tables, *_launch(_TASK_BY_HOST), *_srun(layout, script, "--cpu-bind=none")]


def _task_lines(layout: Layout, script: str) -> list[str]:
    """A task for each GPU. In a job of one component the tasks are in the order of the ranks; in one of several, tasks
    are in the order of the nodes, and a table says which rank each is."""
    if len(layout.parts) > 1:
        order = [rank for node in layout.nodes for rank in node.ranks]
        command = _TASK.format(arrays="ranks=($RANKS) local_ranks=($LOCAL_RANKS)", rank="${ranks[SLURM_PROCID]}")
        before, options = [], "--distribution=block"
        tables = ["# Rank and local rank of each task.", f'export RANKS="{" ".join(map(str, order))}"']
    else:
        order = list(range(layout.world_size))
        command = _TASK.format(arrays="local_ranks=($LOCAL_RANKS)", rank="$SLURM_PROCID")
        before = [
            "# The node of each rank, one line for each in the host file.",
            f"nodes=({' '.join(str(node) for node, _ in layout.places)})",
            *_host_file('$(for node in "${nodes[@]}"; do echo "${hosts[node]}"; done)'),
        ]
        options = f"--ntasks={layout.world_size} --distribution=arbitrary"
        tables = ["# Local rank of each task."]
    local = " ".join(str(layout.places[rank][1]) for rank in order)
    return [
        *before,
        f"export WORLD_SIZE={layout.world_size}",
        *tables,
        f'export LOCAL_RANKS="{local}"',
        *_launch(command),
        *_srun(layout, script, options),
    ]


def _host_file(hosts: str) -> list[str]:
    """The host file of --distribution=arbitrary: a line for each task with its host, as the shell's words `hosts`."""
    return [
        "SLURM_HOSTFILE=$(mktemp)",
        "trap 'rm -f \"$SLURM_HOSTFILE\"' EXIT",
        f"printf '%s\\n' {hosts} > \"$SLURM_HOSTFILE\"",
        "export SLURM_HOSTFILE",
    ]


def _launch(command: str) -> list[str]:
    return [f"launch='{command}'"]


def _srun(layout: Layout, script: str, options: str) -> list[str]:
    """One srun over all components, each with the number of its nodes' GPUs."""
    parts = [
        f'{_group(number, layout.parts)}{options} bash -c "$launch" launch {len(part[0].ranks)} {script} "$@"'
        for number, part in enumerate(layout.parts)
    ]
    return ["srun --kill-on-bad-exit=1 " + " : \\\n  ".join(parts)]


def _group(number: int, parts: Sequence[Sequence[NodeRanks]]) -> str:
    return f"--het-group={number} " if len(parts) > 1 else ""


def _notes(plan: Plan, context: ExportContext, layout: Layout, hosts: Sequence[str] | None) -> tuple[str, ...]:
    types = ", ".join(dict.fromkeys(gres_type(node.device) for node in layout.nodes))
    notes = [
        *script_note(context.script),
        "partition, account and time limit are the site's: sbatch --partition=... --account=... --time=...",
        f"GRES types ({types}) are taken from the devices' names: `scontrol show node` says the cluster's own",
    ]
    if not takes_whole_nodes(plan):
        notes.append(
            "CPUs and memory beside the GPUs are the partition's defaults:"
            " sbatch --exclusive --mem=0 takes whole nodes, --cpus-per-gpu a share"
        )
    if len(layout.parts) > 1:
        notes.append("a heterogeneous job: only Slurm's backfill scheduler starts one")
    if not layout.node_major:
        notes.append("ranks do not follow the nodes: a task for each GPU in place of torchrun")
    if hosts is not None:
        notes += [
            f"--nodelist asks for the plan's {len(hosts)} nodes and no others: the job waits until all are free, and"
            " one that is down keeps it waiting (place --replace)",
            "without the host file Slurm numbers ranks by the names of the hosts:"
            f" {cost_of_order(context.orders, 'by_name_s')}",
            megatrons_order(plan),
        ]
    if nodes_of_tp(plan, layout) > 1:
        notes.append(
            "tensor parallelism reaches over nodes: they must share a fast island (--switches=1, or --segment)"
        )
    return (*notes, *device_notes(plan, layout, "Slurm"))
