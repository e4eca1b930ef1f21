"""Seconds of one micro-batch's forward and backward pass through a chunk of layers on one rank, by kind of work.

The device runs its kernels one after another; the host must launch each of them. A pass takes what the slower of the
two takes (their p-norm: where both are near, each waits for the other at times). Collectives of the tensor-, context-
and expert-parallel axes stand between kernels unless the software runs them beside a product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields
from functools import lru_cache

from estimator.layers.split import Work
from estimator.pricing.amounts import Amount, least, norm_where_both, ratio_or_one
from estimator.pricing.host_time import Host, HostWork
from estimator.pricing.operator_time import time_operator
from estimator.pricing.recipe import NarrowAttention, NarrowScaling, TensorOverlap
from profiles.efficiencies import OperatorEfficiencies
from profiles.records import dataclass
from profiles.training_parameters import TrainingParameters
from profiles.vocabulary import NARROW_DTYPES, Collective, Device, DType, Kernels, LayerTime, Operator

KIND_FIELDS = {
    "gemm": "gemm_s",
    "grouped_gemm": "gemm_s",
    "batched_gemm": "attention_s",
    "attention": "attention_s",
    "conv": "convolution_s",
    "memory": "memory_bound_s",
    "gather": "memory_bound_s",
}
FULL_GAIN_HEAD = 128
"""The size of heads from which fp8 brings fused attention its whole gain; a smaller one's exponentials are as many
beside fewer products (KA: 1.13 at 64, 1.23 at 128, 1.26 at 192 on B200 and GB200, 1.20 and 1.41 on B300, 1.17 and 1.36
on H100 and H200, TensorRT-LLM from 8192 tokens on)."""
SHARED_EXPERT = "experts.shared."
"""With what the names of operators of an expert that every token visits begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """Seconds of one pass by kind; the fields but `weight_s` sum to the pass.

    `weight_s` is what of a backward pass only makes weight gradients.
    """

    gemm_s: float = 0.0
    attention_s: float = 0.0
    convolution_s: float = 0.0
    memory_bound_s: float = 0.0
    recompute_s: float = 0.0
    launch_s: float = 0.0
    tp_s: float = 0.0
    cp_s: float = 0.0
    ep_s: float = 0.0
    weight_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds of the pass."""
        return math.fsum([getattr(self, name) for name in SECONDS if name != "weight_s"])

    @property
    def communication_s(self) -> float:
        """Seconds that collectives stop the pass."""
        return self.tp_s + self.cp_s + self.ep_s

    def longer(self, times: float) -> PassTime:
        """Return the pass with every kind of seconds so many times as long."""
        return PassTime(**{part.name: getattr(self, part.name) * times for part in fields(self)})


SECONDS = tuple(part.name for part in fields(PassTime))
"""The kinds of seconds of a pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """What of a `Machine` an operator's time depends on: one for all machines alike in it, told apart as itself."""

    device: Device
    efficiencies: OperatorEfficiencies
    parameters: TrainingParameters
    dtype: DType
    kernels: Kernels
    accumulator_bytes: int
    attention_kernel: str | None
    flash_generation: int
    fp8_attention: NarrowAttention
    fp8_scaling: NarrowScaling


_pace = lru_cache(maxsize=1024)(Pace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a pass runs on: the device, its efficiencies, and who times a collective of the stage's groups.

    `accumulation_bytes`: memory traffic a trainable parameter and micro-batch to add up gradients outside products
    (0 where the product reads and writes the sum, of `accumulator_bytes` an element). `tensor_overlap`,
    `shared_beside`, `fp8_attention`, `fp8_scaling` as `Software` has them. `host` None: nothing waits for it.
    """

    device: Device
    efficiencies: OperatorEfficiencies
    parameters: TrainingParameters
    dtype: DType
    collective_s: Callable[[Collective], float]
    overlap_tp: bool
    tensor_overlap: TensorOverlap
    overlap_ep: bool
    shared_beside: bool
    host: Host | None
    kernels: Kernels
    accumulation_bytes: int
    accumulator_bytes: int
    attention_kernel: str | None
    flash_generation: int
    fp8_attention: NarrowAttention
    fp8_scaling: NarrowScaling
    bandwidth_bytes_per_s: float
    pace: Pace = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pace = _pace(
            self.device,
            self.efficiencies,
            self.parameters,
            self.dtype,
            self.kernels,
            self.accumulator_bytes,
            self.attention_kernel,
            self.flash_generation,
            self.fp8_attention,
            self.fp8_scaling,
        )
        object.__setattr__(self, "pace", pace)

    @property
    def qualifiers(self) -> tuple[str, str]:
        """What parameters of whole runs may be named for: the device, and its generation."""
        return self.device.name, self.efficiencies.architecture


def forward_pass(
    works: Sequence[tuple[Work, int]], machine: Machine, measured: Sequence[LayerTime | None] = ()
) -> PassTime:
    """One micro-batch forward through layers: (work, how many layers of it). `measured` holds the profiled time of each
    work or None (empty: none): it wins over the operators' times, which then only share it out by kind."""
    totals = PassSum()
    for (work, count), profile in zip(works, measured or [None] * len(works), strict=True):
        totals.add_forward(work, machine, profile, times=count)
    return totals.finish(machine)


def backward_pass(
    works: Sequence[tuple[Work, int]], machine: Machine, measured: Sequence[LayerTime | None] = ()
) -> PassTime:
    """One micro-batch backward, with what is computed again before it; arguments as for `forward_pass`."""
    totals = PassSum()
    for (work, count), profile in zip(works, measured or [None] * len(works), strict=True):
        totals.add_backward(work, machine, profile, times=count)
    return totals.finish(machine)


class PassSum:
    """Adds up a pass; local to one call. What it adds is linear in the layers, `finish` is not."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(SECONDS, 0.0)
        self.host = HostWork()
        self.hidable_s = {"cp_s": 0.0, "tp_s": 0.0, "ep_s": 0.0}

    def add_forward(self, work: Work, machine: Machine, profile: LayerTime | None, *, times: int) -> None:
        """One micro-batch forward through `times` layers of `work`."""
        shared_s = self.compute_forward(work, machine, profile, times=times)
        self.talk_forward(work, machine, shared_s, times=times)

    def add_backward(self, work: Work, machine: Machine, profile: LayerTime | None, *, times: int) -> None:
        """One micro-batch backward through them, with what is computed again."""
        shared_s = self.compute_backward(work, machine, profile, times=times)
        self.talk_backward(work, machine, shared_s, times=times, profiled=profile is not None)

    def compute_forward(self, work: Work, machine: Machine, profile: LayerTime | None, *, times: int) -> float:
        """What a rank by itself does of `add_forward`, wherever the others sit; return the seconds of shared experts in
        it."""
        profiled_s = None if profile is None else profile.forward_s
        shared_s = self.operators(work.operators, machine, backward=False, times=times, profiled_s=profiled_s)
        if profile is None:
            self.host.steps += times * work.is_end
        return shared_s

    def compute_backward(
        self, work: Work, machine: Machine, profile: LayerTime | None, *, times: int
    ) -> tuple[float, float]:
        """The same of `add_backward`; the seconds are those of what runs again, and of the rest."""
        again_s = self.again(work, machine, times=times, profiled_s=None if profile is None else profile.forward_s)
        profiled_s = None if profile is None else profile.backward_s
        shared_s = self.operators(
            work.operators, machine, backward=True, times=times, profiled_s=profiled_s, learns=not work.frozen
        )
        return again_s, shared_s

    def talk_forward(self, work: Work, machine: Machine, shared_s: float, *, times: int) -> None:
        """The rest of `add_forward`: what ranks tell each other, beside so many seconds of shared experts."""
        exchanged_s = self.collectives(work.collectives, machine, phase="forward", times=times)
        self.beside_shared(shared_s, exchanged_s, machine)

    def talk_backward(
        self, work: Work, machine: Machine, shared_s: tuple[float, float], *, times: int, profiled: bool
    ) -> None:
        """The rest of `add_backward`; and gradients added up, unless the `profiled` times hold that."""
        self.talk_again(work, machine, shared_s[0], times=times)
        if not profiled:
            self.accumulation(work, machine, times=times)
        exchanged_s = self.collectives(work.collectives, machine, phase="backward", times=times, frozen=work.frozen)
        self.beside_shared(shared_s[1], exchanged_s, machine)

    def talk_again(self, work: Work, machine: Machine, shared_s: float, *, times: int) -> None:
        """What of `talk_backward` comes with what runs again, beside so many seconds of shared experts in it."""
        inner = PassSum()
        exchanged_s = inner.collectives(work.again_collectives, machine, phase="forward", times=times)
        inner.beside_shared(shared_s, exchanged_s, machine)
        for axis in ("tp_s", "cp_s", "ep_s"):
            self.seconds[axis] += inner.seconds[axis]
        self.host.add(inner.host)

    def beside_shared(self, shared_s: float, exchanged_s: float, machine: Machine) -> None:
        """Take off the experts' exchange what a shared expert hides of it, whose first product runs beside the
        dispatch, its second beside the combination; another micro-batch's passes hide all of it or nothing of this."""
        if machine.shared_beside and not machine.overlap_ep:
            self.seconds["ep_s"] -= min(shared_s, exchanged_s) * (1 - machine.parameters.of("overlap_cost", "tp"))

    def operators(
        self,
        operators: Iterable[Operator],
        machine: Machine,
        *,
        backward: bool,
        times: int,
        profiled_s: float | None = None,
        learns: bool = True,
    ) -> float:
        """Add operators of `times` layers; return the seconds of shared experts among them."""
        listed = tuple(operators)
        timed = [(op, _operator_s(op, machine.pace, backward)) for op in listed]
        scale = float(times)
        if profiled_s is None and machine.host is not None:
            driven = machine.host.backward(listed, learns=learns) if backward else machine.host.forward(listed)
            self.host.add(driven, times)
        if profiled_s is not None:
            modelled_s = sum(seconds for _, seconds in timed)
            scale = times * profiled_s / modelled_s if modelled_s else 0.0
            if not modelled_s:
                self.seconds["memory_bound_s"] += times * profiled_s
        shared_s = 0.0
        for op, seconds in timed:
            took = scale * seconds
            shared_s += took if op.name.startswith(SHARED_EXPERT) else 0.0
            self.seconds[KIND_FIELDS[op.kind]] += took
            if backward and learns and op.backward_flops and op.kind in ("gemm", "grouped_gemm"):
                self.seconds["weight_s"] += took * min(1.0, 2 * math.prod(op.shape) / op.backward_flops)
        return shared_s

    def again(self, work: Work, machine: Machine, *, times: int, profiled_s: float | None) -> float:
        """Add what is computed again of `times` layers; return the seconds of shared experts in it."""
        inner = PassSum()
        whole = work.runs_again
        rerun_s = profiled_s if whole else None
        shared_s = inner.operators(work.again, machine, backward=False, times=times, profiled_s=rerun_s)
        self.seconds["recompute_s"] += sum(inner.seconds[name] for name in dict.fromkeys(KIND_FIELDS.values()))
        self.host.add(inner.host)
        self.host.checkpoints += times if whole else 0
        return shared_s

    def accumulation(self, work: Work, machine: Machine, *, times: int) -> None:
        moved = times * machine.accumulation_bytes * (work.trainable_parameters + work.trainable_expert_parameters)
        self.seconds["memory_bound_s"] += (
            moved
            / machine.bandwidth_bytes_per_s
            / machine.parameters.of("memory_share", machine.kernels, *machine.qualifiers)
        )

    def collectives(
        self, collectives: Iterable[Collective], machine: Machine, *, phase: str, times: int, frozen: bool = False
    ) -> float:
        """Add collectives of `times` layers; return the seconds of experts' exchange among them."""
        exchanged_s = 0.0
        for one in collectives:
            if one.phase != phase:
                continue
            took = times * machine.collective_s(one)
            self.host.collectives += times if machine.host is None or machine.host.launches(one) else 0
            if one.axis == "cp":
                self.hidable_s["cp_s"] += took
            elif machine.overlap_ep and one.axis in ("ep", "etp"):
                self.hidable_s["ep_s"] += took
            elif machine.overlap_tp and one.axis == "tp":
                self.hidable_s["tp_s"] += took * _share_beside(one, machine.tensor_overlap, frozen=frozen)
            exchanged_s += took if one.axis == "ep" else 0.0
            self.seconds["ep_s" if one.axis == "etp" else f"{one.axis}_s"] += took
        return exchanged_s

    def finish(self, machine: Machine) -> PassTime:
        return PassTime(**finish_pass(self.seconds, self.hidable_s, self.host, machine))  # type: ignore[arg-type]


def finish_pass(
    seconds: Mapping[str, Amount],
    hidable_s: Mapping[str, Amount],
    host: HostWork,
    machine: Machine,
) -> dict[str, Amount]:
    """Return the seconds of passes by kind, as `PassTime` names them, from what their layers add up to: `seconds` by
    kind, communication that products could hide, and what the host does for them.

    Communication beside products is hidden up to what those take, at the cost of what it takes from them. Experts'
    exchanges hide behind another micro-batch's passes, as DualPipe and Megatron's 1F1B overlap have it.
    """
    parameters, done = machine.parameters, dict(seconds)
    compute_s = done["gemm_s"] + done["attention_s"] + done["memory_bound_s"]
    cover_s = {"cp_s": done["attention_s"], "tp_s": done["gemm_s"], "ep_s": compute_s}
    for axis, most_s in hidable_s.items():
        done[axis] = done[axis] - least(most_s, cover_s[axis]) * (1 - parameters.of("overlap_cost", "tp"))
    if machine.host is None:
        return done
    device_s = sum(value for name, value in done.items() if name != "weight_s")
    took_s = norm_where_both(device_s, machine.host.seconds(host), machine.host.norm)
    done["launch_s"] = took_s - device_s
    # What only makes weight gradients is launched too.
    done["weight_s"] = done["weight_s"] * ratio_or_one(took_s, device_s)
    return done


def _share_beside(one: Collective, tensor_overlap: TensorOverlap, *, frozen: bool) -> float:
    """Which share of a tensor-parallel collective can run beside a product.

    The input's gradient sum runs beside the product of the weight's gradient, unless that is `frozen`, and the input's
    second gathering beside that of its gradient (Megatron). In pieces each
    gather runs beside the product that reads it, each scatter beside that which writes it, but for the first piece or
    the last (Transformer Engine's userbuffers, which come with sequence parallelism).
    """
    if one.phase == "backward" and one.name.endswith(".input" if frozen else (".enter", ".input")):
        return 1.0
    if tensor_overlap == "pipelined" and one.op != "all_reduce" and one.name.endswith((".enter", ".leave")):
        return 1 - 1 / one.ranks
    return 0.0


@lru_cache(maxsize=1 << 17)
def _operator_s(op: Operator, pace: Pace, backward: bool) -> float:
    """Device seconds of one operator in a running training."""
    if not (op.backward_kernels if backward else op.forward_kernels):
        return 0.0
    took = time_operator(
        op,
        device=pace.device,
        dtype=_compute_dtype(op, pace.dtype),
        efficiencies=pace.efficiencies,
        pass_="backward" if backward else "forward",
        attention_kernel=pace.attention_kernel,
        accumulator_bytes=pace.accumulator_bytes,
        scales_first=pace.fp8_scaling == "current",
    )
    if op.kind == "attention" and pace.fp8_attention != "no" and pace.dtype in NARROW_DTYPES and not op.wide:
        architecture = pace.efficiencies.architecture
        of_first = f"{pace.fp8_attention}-{architecture}"
        gain = pace.parameters.of("fp8_attention_share", of_first, architecture) - 1
        took /= 1 + gain * min(1.0, max(op.shape[5:7]) / FULL_GAIN_HEAD)
    return took / _share(op, pace)


def _compute_dtype(op: Operator, dtype: DType) -> DType:
    """Of narrow types, products of activations with the blocks' weights alone are in them (Transformer Engine):
    attention, adapters and the vocabulary's projection stay in bf16."""
    narrow = op.kind in ("gemm", "grouped_gemm") and not op.name.startswith("head.") and ".lora_" not in op.name
    narrow = narrow and not op.wide
    return dtype if dtype not in NARROW_DTYPES or narrow else "bf16"


def _share(op: Operator, pace: Pace) -> float:
    """Which share of the operator model's rate a running training reaches."""
    parameters, device, architecture = pace.parameters, pace.device.name, pace.efficiencies.architecture
    match op.kind:
        case "memory" | "gather":
            return parameters.of("memory_share", pace.kernels, device, architecture)
        case "attention":
            kernel = f"flash{pace.flash_generation}"
            return parameters.of("attention_share", device, f"{kernel}-{architecture}", kernel, architecture)
        case "batched_gemm":
            return parameters.of("attention_share", f"math-{architecture}", "math")
        case _:
            four_bits = op.kind == "gemm" and _compute_dtype(op, pace.dtype) == "nvfp4"
            beyond_table = parameters.of("nvfp4_share") if four_bits else 1.0
            return parameters.of("gemm_share", device, architecture) * beyond_table


def attention_kernel_of(generation: int, efficiencies: OperatorEfficiencies) -> str | None:
    """The device's fused kernel of that FlashAttention generation; None, its usual one, where it has no such one."""
    name = f"flash{generation}"
    return name if any(known == name for known, _ in efficiencies.attention) else None
