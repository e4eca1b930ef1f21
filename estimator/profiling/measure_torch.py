"""Times a local shard with torch on one device: forward, backward and optimizer step, and the memory they take.

No process group: tensor-parallel shards are built with neutral collectives (`models_zoo.torch_layers.parallel`), so
what is timed is one rank's computation alone (Crius section 5.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from estimator.host.memory import free_host_memory_bytes, keep_freed_memory
from estimator.profiling.plan import ProfileTask
from estimator.profiling.room import refuse_early
from estimator.profiling.sampling import explain, sample_passes, time_in_turn
from estimator.profiling.setting import Repeats, Setting
from models_zoo.layers import Layer, TracedLayer
from models_zoo.torch_layers.build import build_layer, example_inputs
from models_zoo.torch_layers.parallel import Neutral
from profiles.errors import InputError
from profiles.measurements import Measurement
from profiles.vocabulary import Infeasible, Shard

LEARNING_RATE = 1e-4
SWEPT_BYTES = 2**27
"""Written before each repeat, as the rest of a stage would be: a layer run again and again finds its weights in the
caches and looks up to 25% faster than it is among others (bench/profile_cost.py compares)."""


def measure_layer(task: ProfileTask, setting: Setting) -> Measurement | Infeasible:
    """Time and memory of `task`'s local shard on one device; Infeasible where it does not fit or torch cannot run it.

    With full recomputation forward keeps its input alone and backward runs it again. Raise InputError for a device that
    torch does not have.
    """
    if task.infeasible is not None:
        return task.infeasible
    return measure_modules(
        [task.layer], task.shard, setting, build=lambda: build_shard(task.layer, task.shard, setting.device)
    )


def build_shard(layer: Layer, shard: Shard, device: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """One layer's local shard on `device`, with neutral collectives, and random inputs of it."""
    if isinstance(layer, TracedLayer):
        from estimator.frontends.torch_piece import build_traced

        return build_traced((layer,), shard, device)
    with torch.device(device):
        module = build_layer(layer, shard, Neutral(shard.tp))
    return module, example_inputs(layer, shard, device)


def measure_modules(
    layers: Sequence[Layer],
    shard: Shard,
    setting: Setting,
    *,
    build: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]],
) -> Measurement | Infeasible:
    """Measures the module that `build` makes, which stands for `layers` held as `shard`. See `measure_layer`."""
    device = check_device(setting.device)
    refusal = refuse_early(layers, shard, setting, free_bytes=lambda: _free_bytes(device))
    if refusal is not None:
        return refusal
    try:
        with torch_settings(device, setting):
            swept = torch.zeros(SWEPT_BYTES // 4, device=device)
            baseline = _start_peak(device)
            module, inputs = build()
            training = Training(module, inputs, shard, setting.optimizer)
            return _measure(training, device, setting.repeats, swept=swept, baseline_bytes=baseline)
    except InputError:
        raise
    except (RuntimeError, ValueError, MemoryError) as error:
        return explain(error, "torch", out_of_memory=_is_out_of_memory(error))


def start_torch(setting: Setting) -> None:
    """Train one weight once, so that what torch loads on first use is not taken for the cost of a first task."""
    device = check_device(setting.device)
    keep_freed_memory()
    with torch_settings(device, setting):
        training = Training(nn.Linear(1, 1, device=device), (torch.ones(1, 1, device=device),), Shard(), "adamw")
        time_steps((training.forward, training.backward, training.step), device)


def check_device(name: str) -> torch.device:
    """The torch device called `name`; InputError if there is none here."""
    usable = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in usable:
        raise InputError(
            where="profile", key="--device", found=name, expected=f"one that torch has here: {', '.join(usable)}"
        )
    return torch.device(wanted)


class Training:
    """A module in training, in three steps that can be timed apart. Inputs and output gradients are random and real:
    an optimizer on zero gradients takes another time."""

    def __init__(self, module: nn.Module, inputs: tuple[Tensor, ...], shard: Shard, optimizer: str) -> None:
        self.module, self.inputs, self.recomputes = module.train(), inputs, shard.recompute == "full"
        self.run = partial(checkpoint, module, use_reentrant=False) if self.recomputes else module
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.outputs: list[Tensor] = []
        self.output_gradients: list[Tensor] = []
        self.masters = [(p, p.detach().float()) for p in self.parameters if p.element_size() < 4]
        trained = [p for p in self.parameters if p.element_size() >= 4] + [master for _, master in self.masters]
        self.optimizer: torch.optim.Optimizer | None = None
        if trained:
            self.optimizer = (
                torch.optim.AdamW(trained, lr=LEARNING_RATE)
                if optimizer == "adamw"
                else torch.optim.SGD(trained, lr=LEARNING_RATE, momentum=0.9)
            )

    def forward(self) -> None:
        """Run forward and keep the outputs that backward starts from."""
        self.outputs = _differentiable(self.run(*self.inputs))

    def prepare(self) -> None:
        """Make fresh gradients of inputs and zeroed ones of weights (a micro-batch adds to them), outside the
        timing."""
        for tensor in self.inputs:
            tensor.grad = None
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()

    def backward(self) -> None:
        """Run backward from a loss, or from the gradients that the next layer would hand back; nothing in a frozen
        layer."""
        if not self.outputs:
            return
        if not self.output_gradients:
            self.output_gradients = [
                torch.ones_like(out) if out.dim() == 0 else torch.randn_like(out) for out in self.outputs
            ]
        torch.autograd.backward(self.outputs, self.output_gradients)
        self.outputs = []

    def step(self) -> None:
        """Take one optimizer step; 16-bit weights have fp32 masters (DESIGN section 4)."""
        if self.optimizer is None:
            return
        for parameter, master in self.masters:
            master.grad = None if parameter.grad is None else parameter.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in self.masters:
                parameter.copy_(master)
                master.grad = None

    def resident_bytes(self) -> int:
        """Return the bytes of weights, gradients, fp32 masters and optimizer state."""
        states = self.optimizer.state.values() if self.optimizer is not None else ()
        held = [*self.module.parameters(), *(p.grad for p in self.parameters if p.grad is not None)]
        held += [master for _, master in self.masters]
        held += [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return sum(tensor.nbytes for tensor in held)


def _differentiable(outputs: object) -> list[Tensor]:
    """Of a module's output or outputs those that backward can start from."""
    candidates = outputs if isinstance(outputs, tuple) else (outputs,)
    return [out for out in candidates if isinstance(out, Tensor) and out.requires_grad]


def _measure(
    training: Training, device: torch.device, repeats: Repeats, *, swept: Tensor, baseline_bytes: int
) -> Measurement:
    steps = (training.forward, training.backward, training.step)

    def sample() -> tuple[float, ...]:
        training.prepare()
        swept.add_(1)
        return time_steps(steps, device)

    saved = _saved_bytes(training, training.run)
    forward_s, backward_s, optimizer_s = zip(*sample_passes(sample, repeats), strict=True)
    return Measurement(
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s if training.optimizer is not None else (),
        saved_bytes=saved,
        peak_memory_bytes=_peak_bytes(training, device, saved) - baseline_bytes,
        parameters=sum(p.numel() for p in training.parameters),
    )


def time_steps(steps: Sequence[Callable[[], object]], device: torch.device) -> tuple[float, ...]:
    """Return the seconds of each step, one after the other; on a GPU between events on its stream."""
    if device.type == "cpu":
        return time_in_turn(steps)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]
    torch.cuda.synchronize(device)
    events[0].record()
    for step, event in zip(steps, events[1:], strict=True):
        step()
        event.record()
    torch.cuda.synchronize(device)
    return tuple(begin.elapsed_time(end) / 1e3 for begin, end in pairwise(events))


def _saved_bytes(training: Training, module: Callable[..., object]) -> int:
    """Bytes that `module` keeps for backward: storages of saved tensors, each once, without weights and buffers.

    An output that backward needs is not counted: the next layer keeps it as its input.
    """
    resident = {t.untyped_storage().data_ptr() for t in (*training.module.parameters(), *training.module.buffers())}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = _differentiable(module(*training.inputs))
    resident |= {out.untyped_storage().data_ptr() for out in outputs}
    return sum(size for place, size in kept.items() if place not in resident)


def _start_peak(device: torch.device) -> int:
    """Starts a new peak; bytes already allocated."""
    if device.type == "cpu":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_allocated(device))


def _peak_bytes(training: Training, device: torch.device, saved: int) -> int:
    """The allocator's peak on a GPU. A CPU has no such counter: resident tensors and saved ones, and with
    recomputation those that backward builds again."""
    if device.type != "cpu":
        return int(torch.cuda.max_memory_allocated(device))
    rebuilt = _saved_bytes(training, training.module) if training.recomputes else 0
    return training.resident_bytes() + saved + rebuilt


def _free_bytes(device: torch.device) -> int:
    """On a GPU what the driver has, and what torch's allocator holds but does not use."""
    if device.type == "cpu":
        return free_host_memory_bytes()
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + unused)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def torch_settings(device: torch.device, setting: Setting) -> Iterator[None]:
    """Threads, device and seed for a measurement; threads and random state are put back afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(setting.threads)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
            torch.manual_seed(setting.seed)
            if device.type == "cuda":
                with torch.cuda.device(device):
                    yield
            else:
                yield
    finally:
        torch.set_num_threads(threads)
