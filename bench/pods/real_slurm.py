"""A real slurmctld beside our model of what it does: it reads our tree, says which nodes it would take, takes ours.

    python -m bench.pods real-slurm [--slurm FOLDER]

FOLDER is where packages of Slurm are unpacked (`apt-get download slurmctld slurm-client slurm-wlm-basic-plugins`, with
what these need, and `dpkg -x FILE FOLDER` of each: no installation, nothing of it runs as a service); else slurmctld
and sbatch are those on the PATH. The controller runs in a folder of its own with auth/none, without munge and without
any slurmd: its nodes are of state CLOUD, and busy ones are drained.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from estimator.host.children import child_processes
from profiles.cluster import Site
from profiles.errors import MachineError
from profiles.host_lists import expand_hosts, fold_hosts
from profiles.records import dataclass
from profiles.topology_writing import topology_conf

SELECTING = ("select/linear", "select/cons_tres")
FOLDER = "CELLPLAN_SLURM"
"""The environment variable that names the folder of unpacked packages."""
_READY_S, _ANSWER_S = 30.0, 60.0
_NAMES = {"slurmctld": ("slurmctld", "slurmctld-wlm")}
_TAKES = re.compile(r"on nodes (\S+)")

_CONFIGURATION = """\
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={other_port}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
ProctrackType=proctrack/linuxproc
SwitchType=switch/none
TaskPlugin=task/none
TopologyPlugin=topology/tree
SelectType={selecting}
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=360000
{plugins}
NodeName={hosts} CPUs=8 RealMemory=1000 State=CLOUD
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """Where Slurm's programs are, by name; `libraries` and `plugins` where they are not installed."""

    programs: dict[str, str]
    libraries: tuple[str, ...] = ()
    plugins: str | None = None


def find_slurm(folder: Path | None = None) -> Slurm | str:
    """Return Slurm's programs in a folder of unpacked packages, else on the PATH; what is missing, in words, where they
    are not there."""
    if folder is None and os.environ.get(FOLDER):
        folder = Path(os.environ[FOLDER])
    places = None if folder is None else os.pathsep.join(str(folder / "usr" / name) for name in ("sbin", "bin"))
    programs = {}
    for name in ("slurmctld", "sbatch", "scontrol"):
        paths = (shutil.which(spelling, path=places) for spelling in _NAMES.get(name, (name,)))
        path = next(filter(None, paths), None)
        if path is None:
            return f"Slurm's {name} is not {'on the PATH' if folder is None else f'in {folder}'}"
        programs[name] = path
    if folder is None:
        return Slurm(programs=programs)
    plugins = next((str(found.parent) for found in folder.glob("usr/lib/**/topology_tree.so")), None)
    libraries = dict.fromkeys(str(found.parent.absolute()) for found in folder.glob("**/*.so*"))
    return Slurm(programs=programs, libraries=tuple(libraries), plugins=plugins)


class Controller:
    """A slurmctld that runs for one site."""

    def __init__(self, slurm: Slurm, site: Site, environment: dict[str, str]) -> None:
        self._slurm, self._site, self._environment = slurm, site, environment
        self._held: set[int] = set()

    def topology(self) -> str:
        """Return what `scontrol show topology` prints."""
        return self._ask("scontrol", "show", "topology").stdout

    def set_free(self, free: Sequence[int]) -> None:
        """Drain the nodes that are not of `free` (numbers), and resume the others."""
        hosts = self._site.network.hosts
        held = set(range(len(hosts))) - set(free)
        for state, nodes in (("RESUME", self._held - held), ("DRAIN", held - self._held)):
            if nodes:
                named = fold_hosts([hosts[node] for node in sorted(nodes)])
                self._ask("scontrol", "update", f"NodeName={named}", f"State={state}", "Reason=busy")
        self._held = held

    def would_take(self, *options: str, nodes: int) -> frozenset[int]:
        """Return the nodes (numbers) on which `sbatch --test-only` would start a job of so many whole nodes; none where
        it would not start one."""
        asked = ("--test-only", "--exclusive", f"--nodes={nodes}", *options, "--wrap=true")
        said = self._ask("sbatch", *asked, check=False).stderr
        match = _TAKES.search(said)
        if match is None:
            return frozenset()
        numbers = {host: number for number, host in enumerate(self._site.network.hosts)}
        return frozenset(numbers[host] for host in expand_hosts(match[1], "sbatch", "nodes"))

    def _ask(self, program: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = (self._slurm.programs[program], *arguments)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_S, env=self._environment, check=False
        )
        if check and done.returncode:
            raise MachineError(f"{' '.join(command)[:200]}: {done.stderr.strip() or done.stdout.strip()}")
        return done


@contextlib.contextmanager
def controller(slurm: Slurm, site: Site, *, selecting: str = SELECTING[0]) -> Iterator[Controller]:
    """A slurmctld for a site whose nodes have names, as long as the context lasts. MachineError where none starts."""
    with child_processes() as children:
        folder = children.folder / "slurm"
        (folder / "state").mkdir(parents=True)
        (folder / "topology.conf").write_text(topology_conf(site), encoding="utf-8")
        port, other_port = _free_ports()
        text = _CONFIGURATION.format(
            host=socket.gethostname(),
            port=port,
            other_port=other_port,
            user="root" if os.geteuid() == 0 else os.environ.get("USER", ""),
            folder=folder,
            selecting=selecting,
            plugins=f"PluginDir={slurm.plugins}" if slurm.plugins else "",
            hosts=fold_hosts(site.network.hosts),
        )
        configuration = folder / "slurm.conf"
        configuration.write_text(text, encoding="utf-8")
        libraries = os.pathsep.join((*slurm.libraries, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])))
        environment = {**os.environ, "SLURM_CONF": str(configuration)}
        if libraries:
            environment["LD_LIBRARY_PATH"] = libraries
        log = folder / "slurmctld.log"
        with log.open("wb") as lines:
            command = (slurm.programs["slurmctld"], "-D", "-f", str(configuration))
            process = children.start(command, env=environment, stdout=lines, stderr=lines, stdin=subprocess.DEVNULL)
        running = Controller(slurm, site, environment)
        end = time.monotonic() + _READY_S
        while "SwitchName" not in running._ask("scontrol", "show", "topology", check=False).stdout:
            if process.poll() is not None or time.monotonic() > end:
                said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise MachineError(f"slurmctld does not start: {said[-1] if said else 'it says nothing'}")
            time.sleep(0.1)
        yield running


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(other.getsockname()[1])
