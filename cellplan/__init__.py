"""cellplan in Python: how fast a large model would train on a cluster, and which parallel plan is best.

    import cellplan
    best = cellplan.plan("llama3-8b", cluster="h100:1x8", global_batch=64)
    best.save("plan.json")

`plan`, `estimate`, `validate`, `simulate` and `place` take the options of the commands of these names as keywords, and
what a Python user has at hand: a config as a dict, a live torch module or JAX function, a cluster as a dict or record.
`planner.api` has the same functions for text alone, and those of the other commands.

Importing this costs next to nothing: what a name stands for is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellplan.functions import estimate as estimate
    from cellplan.functions import load_plan as load_plan
    from cellplan.functions import place as place
    from cellplan.functions import plan as plan
    from cellplan.functions import simulate as simulate
    from cellplan.functions import validate as validate
    from cellplan.result import Result as Result
    from profiles.cluster import Cluster as Cluster
    from profiles.cluster_file import load_cluster as load_cluster
    from profiles.errors import InputError as InputError
    from profiles.errors import MachineError as MachineError
    from profiles.errors import NothingFits as NothingFits

    __version__: str

_HOMES = {
    "estimate": "cellplan.functions:estimate",
    "load_plan": "cellplan.functions:load_plan",
    "place": "cellplan.functions:place",
    "plan": "cellplan.functions:plan",
    "simulate": "cellplan.functions:simulate",
    "validate": "cellplan.functions:validate",
    "Result": "cellplan.result:Result",
    "Cluster": "profiles.cluster:Cluster",
    "load_cluster": "profiles.cluster_file:load_cluster",
    "InputError": "profiles.errors:InputError",
    "MachineError": "profiles.errors:MachineError",
    "NothingFits": "profiles.errors:NothingFits",
    "__version__": "planner.shared.version:VERSION",
}
"""Where each public name is defined."""

__all__ = (
    "Cluster",
    "InputError",
    "MachineError",
    "NothingFits",
    "Result",
    "estimate",
    "load_cluster",
    "load_plan",
    "place",
    "plan",
    "simulate",
    "validate",
)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cellplan' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, _, attribute = home.partition(":")
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
