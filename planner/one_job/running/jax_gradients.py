"""Weights as a chunk's programs take them, and where their gradients add up until the iteration's end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from planner.one_job.running.jax_leaves import Key, Leaf, Tree
from planner.one_job.running.jax_mesh import StageDevices
from planner.one_job.running.jax_weights import gather_program, zeros_program


class Gradients:
    """Of one iteration of a stage. `chunks` are the weights that each chunk reads; `leaves` as the programs of the
    chunks take them.

    Where lanes are several, each replica runs on its own, and what ZeRO 2 and 3 share over replicas is done between the
    programs: weights are gathered before them, a chunk at a time, and a micro-batch's gradients scattered after them.
    """

    def __init__(self, leaves: Mapping[Key, Leaf], devices: StageDevices, chunks: Sequence[Sequence[Key]]) -> None:
        self.devices, self.chunks, self._whole = devices, chunks, leaves
        self._apart = [key for key, leaf in leaves.items() if leaf.zero >= 2] if devices.is_split else []
        self.leaves = {key: leaf.replica_alone if key in self._apart else leaf for key, leaf in leaves.items()}
        added = {key: leaf for key, leaf in self.leaves.items() if key not in self._apart}
        self._zeros = zeros_program(added, devices.lane.mesh)
        self._sums: Tree = {}
        self._scattered: Tree = {}
        self._weights: Tree = {}
        if self._apart:
            self._compile_apart()

    def _compile_apart(self) -> None:
        leaves, devices = self._whole, self.devices
        parted = [[key for key in keys if key in self._apart] for keys in self.chunks]
        self._scattered_zeros = zeros_program({key: leaves[key] for key in self._apart}, devices.mesh)
        self._empty = [zeros_program({key: self.leaves[key] for key in keys}, devices.lane.mesh) for keys in parted]
        gathered = [[key for key in keys if leaves[key].zero == 3] for keys in parted]
        self._gather = [gather_program(leaves, keys, devices) if keys else None for keys in gathered]
        self._add = [self._adder(keys) for keys in parted]

    def _adder(self, keys: Sequence[Key]) -> Any:
        leaves = self._whole
        total = {key: leaves[key].gradient_spec for key in keys}
        added_specs = {key: self.leaves[key].gradient_spec for key in keys}

        def add(totals: Tree, gradients: Tree) -> Tree:
            return {key: totals[key] + leaves[key].scattered(gradients[key][0])[None] for key in keys}

        mapped = jax.shard_map(add, mesh=self.devices.mesh, in_specs=(total, added_specs), out_specs=total)
        return jax.jit(mapped, donate_argnums=0)

    def begin(self, weights: Tree) -> None:
        """A new iteration with `weights`, as their leaves' `weight_spec` says."""
        self._weights = weights
        self._sums = self._zeros()
        self._scattered = self._scattered_zeros() if self._apart else {}

    def weights_of(self, chunk: int) -> Tree:
        """What a chunk's programs read."""
        held = {key: self._weights[key] for key in self.chunks[chunk]}
        if self._apart and (gather := self._gather[chunk]) is not None:
            held |= gather({key: array for key, array in held.items() if self._whole[key].zero == 3})
        return {key: self.devices.split(array, self.leaves[key].weight_spec) for key, array in held.items()}

    def sums_of(self, chunk: int) -> Tree:
        """What a chunk's backward adds to, and takes over."""
        held = {key: self._sums[key] for key in self.chunks[chunk] if key in self._sums}
        return held | (self._empty[chunk]() if self._apart else {})

    def put(self, chunk: int, added: Tree) -> None:
        """What backward made of them."""
        self._sums |= {key: array for key, array in added.items() if key in self._sums}
        keys = [key for key in self.chunks[chunk] if key in self._apart]
        if keys:
            joined = {key: self.devices.join(added[key], self.leaves[key].gradient_spec) for key in keys}
            self._scattered |= self._add[chunk]({key: self._scattered[key] for key in keys}, joined)

    def take(self) -> Tree:
        """The iteration's gradients over the whole stage, as their leaves' `gradient_spec` says."""
        joined = {key: self.devices.join(array, self.leaves[key].gradient_spec) for key, array in self._sums.items()}
        gradients = joined | self._scattered
        # Whoever steps replaces the weights: holding on to them here would keep both.
        self._sums, self._scattered, self._weights = {}, {}, {}
        return gradients

    def pending(self) -> Any:
        """All arrays, to be waited for."""
        return self._sums, self._scattered
