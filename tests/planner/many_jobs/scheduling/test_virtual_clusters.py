"""Cells that virtual clusters own: whatever the others do, each gets its own back."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest

from planner.many_jobs.scheduling.buddy_cells import Cell, CellTree, FreeCells, cell_tree
from planner.many_jobs.scheduling.owned_cells import load_owned_cells, read_owned_cells
from planner.many_jobs.scheduling.virtual_clusters import VirtualClusters, restored
from profiles.errors import InputError
from profiles.network import FabricLevel, FabricPart, Network
from tests.oracles.cells_oracle import all_fit
from tests.seeds import seeds


def network(*levels: tuple[str, tuple[int, ...]]) -> Network:
    """A tree of levels from the nodes up, each with the part of each part below."""
    return Network(
        levels=tuple(
            FabricLevel(
                name=name, parts=tuple(FabricPart(name=f"{name}{part}") for part in range(max(of) + 1)), part_of=of
            )
            for name, of in levels
        )
    )


def small_tree(rng: Random) -> CellTree:
    """Some nodes of a few devices, with or without leaves and pods."""
    size, leaf = rng.choice((1, 2, 3, 4)), rng.choice((1, 2, 3))
    leaves = rng.choice((1, 2))
    levels = [("leaf", tuple(node // leaf for node in range(leaf * leaves)))] if rng.random() < 0.8 else []
    return cell_tree(network(*levels), leaf * leaves, size)


def covered(tree: CellTree, cells: list[Cell]) -> list[int]:
    """The devices of cells, one after the other."""
    return [
        device
        for level, number in cells
        for device in range(number * tree.sizes[level], (number + 1) * tree.sizes[level])
    ]


def test_the_levels_of_a_tree() -> None:
    """Nodes stand in the order of the tree; leaves that differ are no cells, the pods above them are."""
    even = cell_tree(network(("leaf", (1, 0, 1, 0)), ("pod", (0, 0))), 4, 8)
    assert even.names == ("device", "2 devices", "4 devices", "node", "leaf", "pod")
    assert (even.sizes, even.order) == ((1, 2, 4, 8, 16, 32), (1, 3, 0, 2))
    odd = cell_tree(network(("leaf", (0, 1, 1, 2, 3, 3)), ("pod", (0, 0, 1, 1))), 6, 6)
    assert odd.names == ("device", "3 devices", "node", "pod")
    assert odd.nodes([(3, 1), (1, 1)]) == Counter({3: 6, 4: 6, 5: 6, 0: 3})
    assert odd.split(28) == Counter({3: 1, 2: 1, 1: 1, 0: 1})
    assert cell_tree(Network(), 3, 1).names == ("node",)


def test_what_fits_is_what_some_places_hold() -> None:
    """`hold` counts; the oracle tries every place. Cells in use are drawn, wherever they came to be."""
    answers: Counter[bool] = Counter()
    for seed in seeds(300):
        rng = Random(seed)
        tree = small_tree(rng)
        free = FreeCells(tree)
        for number in range(tree.count):
            free.add_top((len(tree.sizes) - 1, number))
        taken = [cell for _ in range(rng.randrange(4)) if (cell := free.take(rng.randrange(len(tree.sizes))))]
        for _ in range(rng.randrange(3)):
            level = rng.randrange(len(tree.sizes))
            cell = level, rng.randrange(tree.devices // tree.sizes[level])
            taken += [cell] if free.take_exactly(cell) else []
        for cell in [cell for cell in taken if rng.random() < 0.3]:
            free.give(cell)
            taken.remove(cell)
        left = frozenset(range(tree.devices)) - set(covered(tree, taken))
        assert free.devices() == len(left)
        wanted = Counter(rng.randrange(len(tree.sizes)) for _ in range(rng.randrange(5)))
        sizes = sorted((tree.sizes[level] for level in wanted.elements()), reverse=True)
        holds = all_fit(left, sizes)
        assert free.hold(wanted) == holds
        answers[holds] += 1
    assert min(answers[True], answers[False]) > 10


class Play:
    """Jobs of virtual clusters that come, go and are adopted, drawn, with what must hold after each step."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.tree = small_tree(self.rng)
        names, owned = "abc"[: self.rng.randrange(1, 4)], dict[str, Counter[int]]()
        left = self.tree.devices
        for name in names:
            share = self.rng.randrange(left + 1)
            left -= share
            owned[name] = self.tree.split(share)
        self.owned = {name: sum(self.tree.sizes[k] * n for k, n in cells.items()) for name, cells in owned.items()}
        self.clusters = VirtualClusters(self.tree, owned)
        self.numbers = iter(range(10**6))

    def step(self) -> None:
        name, clusters = self.rng.choice(sorted(self.owned)), self.clusters
        if clusters.held and self.rng.random() < 0.4:
            clusters.end(self.rng.choice(sorted(clusters.held)))
        elif self.rng.random() < 0.3:
            level = self.rng.randrange(len(self.tree.sizes))
            cell = level, self.rng.randrange(self.tree.devices // self.tree.sizes[level])
            clusters.adopt(f"j{next(self.numbers)}", name, [cell])
        else:
            room, wanted = clusters.room(name), self.rng.randrange(1, self.tree.devices + 1)
            cells = clusters.start(f"j{next(self.numbers)}", name, wanted, lambda _cell: self.rng.random())
            assert (cells is not None) == (wanted <= room)
            assert cells is None or len(covered(self.tree, list(cells))) == wanted

    def check(self) -> None:
        """Nobody's devices are another's; each still has all that it owns, and the oracle finds places for all of it
        beside what is bound."""
        clusters = self.clusters
        held = [device for _, cells in clusters.held.values() for device in covered(self.tree, list(cells))]
        assert len(held) == len(set(held))
        used = Counter[str]()
        for name, cells in clusters.held.values():
            used[name] += len(covered(self.tree, list(cells)))
        for name, owns in self.owned.items():
            assert clusters.room(name) + used[name] == owns
        bound = list(clusters.bound())
        everywhere = covered(self.tree, [cell for _, cell in bound])
        assert len(everywhere) == len(set(everywhere))
        for name, cells in clusters.held.values():
            own = set(covered(self.tree, [cell for whose, cell in bound if whose == name]))
            assert own.issuperset(covered(self.tree, list(cells)))
        rest = [self.tree.sizes[k] for own in clusters.unbound.values() for k in own.elements()]
        assert all_fit(frozenset(range(self.tree.devices)) - set(everywhere), sorted(rest, reverse=True))


def test_everybody_gets_his_own_back() -> None:
    for seed in seeds(200):
        play = Play(seed)
        for _ in range(25):
            play.step()
            play.check()
        for name, owns in play.owned.items():
            for job in [job for job, (whose, _) in play.clusters.held.items() if whose == name]:
                play.clusters.end(job)
            if owns:
                assert play.clusters.start(f"all of {name}", name, owns, lambda _cell: 0.0) is not None
                play.check()


def test_a_state_is_read_back_as_it_was() -> None:
    for seed in range(40):
        play = Play(seed)
        for _ in range(12):
            play.step()
        if not play.clusters.held:
            play.clusters.break_node(0)
        written: dict[str, Any] = json.loads(json.dumps(play.clusters.state()))
        again = restored(play.tree, written)
        assert again.state() == play.clusters.state()
        assert again.pool.free == play.clusters.pool.free
        assert {name: cells.free for name, cells in again.own.items()} == {
            name: cells.free for name, cells in play.clusters.own.items()
        }


def test_a_node_that_failed_is_nobodys_until_it_is_repaired() -> None:
    tree = cell_tree(Network(), 2, 4)
    clusters = VirtualClusters(tree, {"a": {2: 1}, "b": {1: 1}})
    assert clusters.start("x", "a", 2, lambda cell: float(cell[1])) == ((1, 0),)
    clusters.end("x")
    clusters.break_node(0)
    assert clusters.start("y", "a", 4, lambda _cell: 0.0) == ((2, 1),)
    assert clusters.start("z", "b", 2, lambda _cell: 0.0) is None
    assert clusters.room("b") == 2
    clusters.repair_node(0)
    assert clusters.start("z", "b", 2, lambda _cell: 0.0) == ((1, 0),)


def test_cells_that_are_too_many() -> None:
    tree = cell_tree(Network(), 2, 4)
    with pytest.raises(ValueError, match="does not hold the cells"):
        VirtualClusters(tree, {"a": {2: 1}, "b": {2: 1, 0: 1}})


def test_what_a_file_says(tmp_path: Any) -> None:
    tree = cell_tree(network(("leaf", (0, 0, 1, 1))), 4, 8)
    path = tmp_path / "cells.yaml"
    path.write_text('research: {leaf: 1, node: 1}\ninterns: {fast: {"4": 1, device: 2}, slow: {node: 2}}\n')
    owned = load_owned_cells(str(path))
    assert owned.on("fast", tree) == {"research": {4: 1, 3: 1}, "interns": {2: 1, 0: 2}}
    assert owned.on("other", tree) == {"research": {4: 1, 3: 1}, "interns": {}}
    with pytest.raises(InputError, match=r"cells\.yaml: research: found leaf"):
        owned.on("fast", cell_tree(Network(), 4, 8))


@pytest.mark.parametrize(
    ("stated", "key"),
    [
        ({"a": {"node": -1}}, "a.node"),
        ({"a": {"node": True}}, "a.node"),
        ({"a": 3}, "a"),
        ({"a": {}}, "a"),
        ({"a": {"node": 1, "fast": {"node": 1}}}, "a"),
        ({"a": {"fast": {"node": 0.5}}}, "a.fast.node"),
        ("research", None),
    ],
)
def test_cells_that_are_none(stated: object, key: str | None) -> None:
    with pytest.raises(InputError) as caught:
        read_owned_cells(stated, where="cells.yaml")
    assert caught.value.key == key
