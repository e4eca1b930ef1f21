"""`mixed`: parts of policies, each by its name, put together; and what parts the named policies are made of.

`ours` as a part is the simulator's choice: of paths (with the levels that are best on them), of levels on the paths
that another part chose, of begins on top of both.
"""

from __future__ import annotations

from dataclasses import replace

from planner.contention.policies.beginning import with_offsets
from planner.contention.policies.compression.catalogue import COMPRESSIONS
from planner.contention.policies.keeping import with_paths
from planner.contention.policies.levelling import compressed_levels, own_levels, same_level
from planner.contention.policies.loads import contending_jobs, link_seconds
from planner.contention.policies.ours import Ours, plays_for
from planner.contention.policies.parts import OFFSETS, PATHS, PRIORITIES, Paths
from planner.contention.policies.records import Decision, View
from planner.contention.policies.unmanaged import Static
from profiles.errors import InputError
from profiles.records import dataclass

OURS, NONE, STATIC = "ours", "none", "static"

PATH_NAMES = (*PATHS, OURS)
PRIORITY_NAMES = (*PRIORITIES, NONE, OURS, STATIC)
"""`none`: all the same, as fair shares are; `static`: levels as users gave them."""
COMPRESSION_NAMES = (*COMPRESSIONS, NONE)
"""`none`: each job has a level of its own, as no fabric has them."""
OFFSET_NAMES = (*OFFSETS, OURS)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a policy, by name."""

    paths: str
    priorities: str
    compression: str = "exact"
    offsets: str = NONE


PARTS_OF: dict[str, Parts] = {
    "cassini": Parts(paths="hashed", priorities=NONE, offsets="cassini"),
    "crux": Parts(paths="crux", priorities="crux"),
    "crux-fair": Parts(paths="crux", priorities="fairness"),
    "crux-pa": Parts(paths="hashed", priorities="crux", compression=NONE),
    "crux-ps-pa": Parts(paths="crux", priorities="crux", compression=NONE),
    "ecmp": Parts(paths="hashed", priorities=NONE),
    "ours": Parts(paths=OURS, priorities=OURS, offsets=OURS),
    "sincronia": Parts(paths="hashed", priorities="sincronia", compression="first-alone"),
    "spray": Parts(paths="spray", priorities=NONE),
    "static": Parts(paths="hashed", priorities=STATIC),
    "tacclstar": Parts(paths="tacclstar", priorities="tacclstar", compression="equal-parts"),
    "varys": Parts(paths="hashed", priorities="varys", compression="equal-parts"),
}
"""Of each policy that is made of parts, which; the rest of it comes with another part by name."""


class Mixed:
    """`mixed`: paths, then priorities on them, compressed to the fabric's levels, then begins. Where `priorities` is
    `none`, `ours` or `static`, levels come with it and there is nothing to compress."""

    name = "mixed"

    def __init__(
        self,
        paths: str = "crux",
        priorities: str = "crux",
        compression: str = "exact",
        offsets: str = NONE,
        plays: int = 0,
        seed: int = 0,
    ) -> None:
        self.parts = Parts(paths=paths, priorities=priorities, compression=compression, offsets=offsets)
        self.plays, self.seed = plays, seed
        _check("--paths", paths, PATH_NAMES)
        _check("--priorities", priorities, PRIORITY_NAMES)
        _check("--compression", compression, COMPRESSION_NAMES)
        _check("--offsets", offsets, OFFSET_NAMES)

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`."""
        decision = self._with_levels(view, self._paths(view))
        seconds = link_seconds(view, decision.paths)
        if self.parts.offsets == OURS:
            return with_offsets(view, decision, plays=self.plays or plays_for(len(contending_jobs(seconds))))
        on_paths = with_paths(view, decision.paths)
        return replace(decision, offsets_s=OFFSETS[self.parts.offsets](on_paths, seconds))

    def _paths(self, view: View) -> Paths:
        if self.parts.paths == OURS:
            return self._ours(view).paths
        return PATHS[self.parts.paths](view)

    def _ours(self, view: View) -> Decision:
        return Ours(plays=self.plays, seed=self.seed, offsets=False).decide(view)

    def _with_levels(self, view: View, paths: Paths) -> Decision:
        on_paths = with_paths(view, paths)
        seconds = link_seconds(view, paths)
        if self.parts.priorities == OURS:
            return replace(self._ours(on_paths), paths=paths, proved=False)
        if self.parts.priorities == STATIC:
            return replace(Static().decide(on_paths), paths=paths)
        offsets_s = (0.0,) * len(view.jobs)
        if self.parts.priorities == NONE:
            return Decision(paths=paths, levels=same_level(seconds), offsets_s=offsets_s)
        order = PRIORITIES[self.parts.priorities](view, seconds)
        levels = own_levels(len(view.jobs), order)
        if self.parts.compression != NONE:
            levels = compressed_levels(view, seconds, order, self.parts.compression)
        return Decision(paths=paths, levels=levels, offsets_s=offsets_s, order=order)


def mixed_of(
    policy: str,
    *,
    paths: str | None = None,
    priorities: str | None = None,
    compression: str | None = None,
    offsets: str | None = None,
    plays: int = 0,
    seed: int = 0,
) -> Mixed:
    """Return the named policy with other parts in the place of its own; None: its own. Raise InputError for a part that
    there is not, or a policy that is not made of parts."""
    _check("--policy", policy, tuple(PARTS_OF))
    own = PARTS_OF[policy]
    return Mixed(
        paths=paths or own.paths,
        priorities=priorities or own.priorities,
        compression=compression or own.compression,
        offsets=offsets or own.offsets,
        plays=plays,
        seed=seed,
    )


def _check(key: str, found: str, names: tuple[str, ...]) -> None:
    if found not in names:
        raise InputError(where="contention", key=key, found=found, expected="one of " + ", ".join(sorted(names)))
