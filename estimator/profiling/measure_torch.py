"""Times a local shard with torch on one device: forward, backward and optimizer step, and the memory they take.

No process group: tensor-parallel shards are built with neutral collectives (`models_zoo.torch_layers.parallel`), so
what is timed is one rank's computation alone (Crius section 5.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from estimator.memory import OPTIMIZERS
from estimator.profiling.host_memory import free_host_memory_bytes
from estimator.profiling.plan import ProfileTask
from estimator.profiling.setting import Repeats, Setting
from estimator.shards import shard_layer
from models_zoo.layers import Layer, TracedLayer
from models_zoo.torch_layers.build import build_layer, example_inputs
from models_zoo.torch_layers.parallel import Alone, Neutral
from profiles.errors import InputError
from profiles.measurements import Measurement
from profiles.vocabulary import DTYPE_BYTES, Infeasible, LocalLayer, Shard

LEARNING_RATE = 1e-4


def measure_layer(task: ProfileTask, setting: Setting) -> Measurement | Infeasible:
    """Time and memory of `task`'s local shard on one device; Infeasible where it does not fit or torch cannot run it.

    With full recomputation forward keeps its input alone and backward runs it again. InputError for a device that
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
        from estimator.frontends.torch_module import build_traced

        return build_traced(layer, shard, device)
    with torch.device(device):
        module = build_layer(layer, shard, Alone() if shard.tp == 1 else Neutral(shard.tp))
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
    locals_ = [shard_layer(layer, shard) for layer in layers]
    for local in locals_:
        if isinstance(local, Infeasible):
            return local
    lacking = _lacking_bytes([local for local in locals_ if isinstance(local, LocalLayer)], shard, setting, device)
    if lacking > 0:
        return Infeasible(
            reason=f"needs {lacking / 2**30:.1f} GiB more than are free on {setting.device}",
            lacking="memory",
            lacking_bytes=lacking,
        )
    try:
        with torch_settings(device, setting):
            baseline = _start_peak(device)
            module, inputs = build()
            return _measure(_Training(module, inputs, shard, setting.optimizer), device, setting.repeats, baseline)
    except InputError:
        raise
    except (RuntimeError, ValueError, NotImplementedError, MemoryError) as error:
        return _explain(error)


def start_torch(setting: Setting) -> None:
    """Trains one weight once, so that what torch loads on first use is not taken for the cost of a first task."""
    device = check_device(setting.device)
    with torch_settings(device, setting):
        training = _Training(nn.Linear(1, 1, device=device), (torch.ones(1, 1, device=device),), Shard(), "adamw")
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


class _Training:
    """A module in training, in three steps that can be timed apart. Inputs and output gradients are random and real:
    an optimizer on zero gradients takes another time."""

    def __init__(self, module: nn.Module, inputs: tuple[Tensor, ...], shard: Shard, optimizer: str) -> None:
        self.module, self.inputs, self.recompute = module.train(), inputs, shard.recompute == "full"
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
        """Keeps the outputs that backward starts from."""
        if self.recompute:
            found = checkpoint(self.module, *self.inputs, use_reentrant=False)
        else:
            found = self.module(*self.inputs)
        self.outputs = [out for out in (found if isinstance(found, tuple) else (found,)) if out.requires_grad]

    def prepare(self) -> None:
        """Outside the timing: fresh gradients of inputs, zeroed ones of weights (a micro-batch adds to them)."""
        for tensor in self.inputs:
            tensor.grad = None
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()

    def backward(self) -> None:
        """From a loss, or from the gradients that the next layer would hand back."""
        if not self.output_gradients:
            self.output_gradients = [
                torch.ones_like(out) if out.dim() == 0 else torch.randn_like(out) for out in self.outputs
            ]
        torch.autograd.backward(self.outputs, self.output_gradients)
        self.outputs = []

    def step(self) -> None:
        """One optimizer step; 16-bit weights have fp32 masters (DESIGN section 4)."""
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
        """Weights, gradients, fp32 masters and optimizer state."""
        states = self.optimizer.state.values() if self.optimizer is not None else ()
        held = [*self.parameters, *(p.grad for p in self.parameters if p.grad is not None)]
        held += [master for _, master in self.masters]
        held += [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return sum(tensor.nbytes for tensor in held)


def _measure(training: _Training, device: torch.device, repeats: Repeats, baseline: int) -> Measurement:
    steps = (training.forward, training.backward, training.step)
    samples: list[tuple[float, ...]] = []
    totals: list[float] = []
    start = perf_counter()
    saved = _saved_bytes(training, training.forward)
    training.backward()
    training.step()
    for _ in range(repeats.warm_up - 1):
        if perf_counter() - start >= repeats.limit_s:
            break
        training.prepare()
        time_steps(steps, device)
    while not repeats.enough(totals, perf_counter() - start):
        training.prepare()
        samples.append(time_steps(steps, device))
        totals.append(sum(samples[-1]))
    forward_s, backward_s, optimizer_s = zip(*samples, strict=True)
    return Measurement(
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        saved_bytes=saved,
        peak_memory_bytes=_peak_bytes(training, device, saved) - baseline,
        parameters=sum(p.numel() for p in training.parameters),
    )


def time_steps(steps: Sequence[Callable[[], object]], device: torch.device) -> tuple[float, ...]:
    """Seconds of each step, one after the other; on a GPU between events on its stream."""
    if device.type == "cpu":
        marks = [perf_counter()]
        for step in steps:
            step()
            marks.append(perf_counter())
        return tuple(end - begin for begin, end in pairwise(marks))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]
    torch.cuda.synchronize(device)
    events[0].record()
    for step, event in zip(steps, events[1:], strict=True):
        step()
        event.record()
    torch.cuda.synchronize(device)
    return tuple(begin.elapsed_time(end) / 1e3 for begin, end in pairwise(events))


def _saved_bytes(training: _Training, forward: Callable[[], None]) -> int:
    """Bytes that `forward` keeps for backward: storages of saved tensors, each once, without weights and buffers."""
    resident = {t.untyped_storage().data_ptr() for t in (*training.module.parameters(), *training.module.buffers())}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in resident:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward()
    return sum(kept.values())


def _start_peak(device: torch.device) -> int:
    """Starts a new peak; bytes already allocated."""
    if device.type == "cpu":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_allocated(device))


def _peak_bytes(training: _Training, device: torch.device, saved: int) -> int:
    """The allocator's peak on a GPU. A CPU has no such counter: resident tensors and saved ones, and with
    recomputation those that backward builds again."""
    if device.type != "cpu":
        return int(torch.cuda.max_memory_allocated(device))
    rebuilt = 0
    if training.recompute:
        rebuilt = _saved_bytes(training, lambda: training.module(*training.inputs))
    return training.resident_bytes() + saved + rebuilt


def _lacking_bytes(locals_: Sequence[LocalLayer], shard: Shard, setting: Setting, device: torch.device) -> int:
    """How many bytes more than are free the shard is expected to take; Linux kills on a host that runs out."""
    width, state = DTYPE_BYTES[shard.dtype], OPTIMIZERS[setting.optimizer].state_bytes(shard.dtype)
    needed = sum(
        local.parameters * (2 * width + state) + local.saved_bytes + local.output_bytes for local in locals_
    ) + 2 * max(local.input_bytes + local.output_bytes for local in locals_)
    free = free_host_memory_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    return needed - int(free)


def _explain(error: Exception) -> Infeasible:
    """What torch said, as a reason."""
    text = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "not enough memory" in text:
        return Infeasible(reason=f"out of memory: {text}", lacking="memory")
    return Infeasible(reason=f"torch cannot run it ({type(error).__name__}: {text})", lacking="support")


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
