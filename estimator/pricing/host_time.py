"""Host seconds of a pass: Python and dispatch of its modules, and the launches of its kernels and collectives.

Eager software walks through the layer's modules in Python, forward, and through their autograd functions, backward;
each launches kernels. A compiler leaves one call a layer and the launches; a captured graph of some modules leaves one
launch a layer, and one of the whole iteration nothing. How fast a host does this is its processor's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from estimator.pricing.amounts import Amount
from estimator.pricing.recipe import Launch, Software
from profiles.records import dataclass
from profiles.training_parameters import TrainingParameters
from profiles.vocabulary import NARROW_DTYPES, Collective, Device, DType, Operator

CAPTURED: dict[Launch, tuple[str, ...]] = {
    "graph_router": ("experts.router", "experts.routing"),
    "graph_dense": ("attention.", "mamba.", "mixer.", "mlp.", "experts.router", "experts.routing", "experts.shared."),
    "graph_layers": ("",),
}
"""By how kernels are launched, what the names of captured operators and collectives begin with."""

CASTS = 2
"""Kernels that bring a product's operand into a narrow type, forward its activation, backward its result's gradient:
find its scale, cast it along rows and columns. The weight's is cast once an iteration."""


@dataclass(slots=True, kw_only=True)
class HostWork:
    """What the host does in a pass: kernels launched by operators of their own, and `inner` ones that one operator
    launches beside its first (an expert's product after another's, casts, fills); collectives; modules called forward
    and walked through backward; layers computed again; ends of the pipeline (a micro-batch fetched, a loss noted)."""

    kernels: Amount = 0
    inner: Amount = 0
    calls: Amount = 0
    backward_calls: Amount = 0
    collectives: Amount = 0
    checkpoints: Amount = 0
    steps: Amount = 0

    def add(self, other: HostWork, times: int = 1) -> None:
        """Add `times` of `other`."""
        self.kernels += times * other.kernels
        self.inner += times * other.inner
        self.calls += times * other.calls
        self.backward_calls += times * other.backward_calls
        self.collectives += times * other.collectives
        self.checkpoints += times * other.checkpoints
        self.steps += times * other.steps


HOST_WORK = tuple(part.name for part in fields(HostWork))


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """How a rank's host drives it: seconds of each thing in `HostWork`, and what of the layers it has to drive.

    `norm`: the power by which host and device time of a pass join. `captured` as `CAPTURED` has it. `apart`: the
    products of a rank's experts are launched one by one, `sequential`: in modules of their own. `fills`: every result
    is filled before it is written (deterministic mode). `adds_gradients`: a kernel a weight adds its gradient to the
    sum. `narrow`: products are in a type to which operands are cast.
    """

    kernel_s: float
    inner_s: float
    call_s: float
    backward_call_s: float
    collective_s: float
    checkpoint_s: float
    step_s: float
    norm: float
    compiled: bool
    captured: tuple[str, ...]
    apart: bool
    sequential: bool
    fills: bool
    adds_gradients: bool
    narrow: bool

    def forward(self, operators: Iterable[Operator]) -> HostWork:
        """Return the host's work for `operators` once forward."""
        done = HostWork()
        listed = [op for op in operators if op.forward_kernels]
        for op in self._driven(listed, done):
            done.calls += self._drive(op, op.forward_kernels, done)
        done.calls += int(self.compiled and bool(listed))
        return done

    def backward(self, operators: Iterable[Operator], *, learns: bool) -> HostWork:
        """Return the host's work for the gradients of `operators`; `learns`: of their weights too."""
        done = HostWork()
        listed = [op for op in operators if op.backward_kernels]
        for op in self._driven(listed, done):
            done.backward_calls += self._drive(op, op.backward_kernels, done)
            if learns and self.adds_gradients and op.kind in ("gemm", "grouped_gemm"):
                done.inner += self._experts(op)
        done.backward_calls += int(self.compiled and bool(listed))
        return done

    def _drive(self, op: Operator, kernels: int, done: HostWork) -> int:
        """Add the launches of an operator's `kernels` to `done`, and return how many modules do them."""
        experts = self._experts(op)
        modules = experts if self.sequential else 1
        done.kernels += modules * kernels
        done.inner += (experts - modules) * kernels + self.fills * modules
        if self.narrow and op.kind in ("gemm", "grouped_gemm") and not (op.wide or op.name.startswith("head.")):
            done.inner += modules * CASTS
        return 0 if self.compiled else modules

    def launches(self, collective: Collective) -> bool:
        """Return whether the host launches `collective` itself."""
        return not self._is_captured(collective.name)

    def seconds(self, work: HostWork) -> Amount:
        """Return how long the host takes for `work`."""
        return (
            work.kernels * self.kernel_s
            + work.inner * self.inner_s
            + work.calls * self.call_s
            + work.backward_calls * self.backward_call_s
            + work.collectives * self.collective_s
            + work.checkpoints * self.checkpoint_s
            + work.steps * self.step_s
        )

    def _driven(self, operators: list[Operator], done: HostWork) -> list[Operator]:
        """Those of `operators` that no graph replays; a graph itself is one launch."""
        if not self.captured:
            return operators
        driven = [op for op in operators if not self._is_captured(op.name)]
        done.kernels += int(len(driven) < len(operators))
        return driven

    def _is_captured(self, name: str) -> bool:
        return bool(self.captured) and name.startswith(self.captured)

    def _experts(self, op: Operator) -> int:
        """How many products an operator is: of a rank's experts one each where they are not multiplied together."""
        return op.shape[0] if op.kind == "grouped_gemm" and (self.apart or self.sequential) else 1


def host_of(software: Software, device: Device, dtype: DType, parameters: TrainingParameters) -> Host | None:
    """Return how the host of a `device` drives a rank under `software`; None where nothing waits for it: a captured
    iteration, or a device whose rates were measured from that very host."""
    if software.launch == "graph" or device.peak_basis != "datasheet":
        return None
    pace = parameters.of("host_pace", device.reference_node.host_cpu)
    modules = software.modules
    return Host(
        kernel_s=pace * parameters.of("launch_s"),
        inner_s=pace * parameters.of("launch_inner_s"),
        call_s=pace * parameters.of("call_s", modules),
        backward_call_s=pace * parameters.of("call_backward_s", modules),
        collective_s=pace * parameters.of("launch_collective_s", modules),
        checkpoint_s=pace * parameters.of("launch_checkpoint_s"),
        step_s=pace * parameters.of("step_s"),
        norm=parameters.of("launch_norm"),
        compiled=software.launch == "compiled",
        captured=CAPTURED.get(software.launch, ()),
        apart=software.grouped_products == "streams",
        sequential=software.grouped_products == "sequential",
        fills=software.deterministic,
        adds_gradients=not software.fused_accumulation,
        narrow=dtype in NARROW_DTYPES,
    )
