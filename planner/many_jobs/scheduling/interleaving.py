"""Jobs that take turns on the same devices: how long a round of them takes, and how much of what there is it uses.

Muri (Zhao et al., "Multi-Resource Interleaving for Deep Learning Training", SIGCOMM 2022, section 4) has four
resources: storage, processors, GPUs and the network. Here two are known, what devices compute and what goes over the
links, so a round has two slots, and a group of two jobs already keeps both busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from planner.many_jobs.jobs.records import Use

RESOURCES = 2
"""Of Muri's four: compute and network. Nothing here says what jobs read from storage or do on processors."""

Phases = tuple[int, ...]
"""Of each job of a group: 0, it computes in the first slot of a round and sends in the second; 1, the other way."""


def round_s(uses: Sequence[Use], phases: Sequence[int]) -> float:
    """Return the seconds in which each job of a group makes one iteration, in the order that the phases say.

    T = sum over slots i of max over resources r of the sum of t_j^r over the jobs j that are at r in slot i. Muri's own
    formula is that of groups no larger than its resources, where the inner sum has one term at most. What a job sends
    behind its own compute is on the network in the slot in which it computes.
    """
    slots_s = 0.0
    for slot in range(RESOURCES):
        computing = [use for use, phase in zip(uses, phases, strict=True) if phase == slot]
        sending = [use for use, phase in zip(uses, phases, strict=True) if phase != slot]
        on_network_s = sum(use.rest_s for use in sending) + sum(use.hidden_s for use in computing)
        slots_s += max(sum(use.compute_s for use in computing), on_network_s)
    return slots_s


def best_phases(uses: Sequence[Use]) -> Phases:
    """Return the order in which a round is shortest, of equal ones the first; the first job begins with compute."""
    return min(_orders(len(uses)), key=lambda phases: round_s(uses, phases))


def interleaved_s(uses: Sequence[Use]) -> float:
    """Return the seconds of a round in the best order: what an iteration of every job of the group takes.

    Never more than all iterations one after the other, never less than all that they compute. Alone a job takes what it
    takes.

    >>> one = Use(iteration_s=1.0, compute_s=0.6)
    >>> round(interleaved_s([one, one]), 6)
    1.2
    """
    if len(uses) == 1:
        return uses[0].iteration_s
    return min(round_s(uses, phases) for phases in _orders(len(uses)))


def efficiency(uses: Sequence[Use]) -> float:
    """Return the interleaving efficiency (section 4): 1 less the mean, over the resources, of the share of a
    round in which nobody uses it."""
    used_s = sum(use.iteration_s + use.hidden_s for use in uses)
    return used_s / (RESOURCES * interleaved_s(uses))


def fit_together(uses: Sequence[Use]) -> bool:
    """Return whether the device holds what all jobs of the group hold at once: none gives its memory up while another
    has its turn."""
    return sum(use.memory_bytes for use in uses) <= min(use.device_memory_bytes for use in uses)


def _orders(jobs: int) -> Iterator[Phases]:
    """All orders but those that are another with the slots exchanged."""
    return ((0, *phases) for phases in product(range(RESOURCES), repeat=jobs - 1))
