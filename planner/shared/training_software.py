"""The software of a training and the type it computes in: as named, else what that software does by itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

from estimator.layers.graph import build_graph
from estimator.pricing.software import Framework, load_framework, usual_framework
from models_zoo.model import Model
from planner.shared.options.training import TrainingOptions
from profiles.vocabulary import NARROW_DTYPES, Device, DType, Shard

WIDE_TYPES: tuple[DType, ...] = ("bf16", "fp16", "fp32")
"""What is trained in where the software's own type is not to be had, the usual first."""


def training_software(
    options: TrainingOptions, model: Model, devices: Sequence[Device], assumed: list[str], *, habits: bool = True
) -> tuple[Framework, DType]:
    """Return the software that `options` name, or what a competent team runs today on the first of `devices`; and the
    type that is computed in. With `habits` also those that the software has for a model of this size and type: files of
    settings say what they have. What nobody said goes to `assumed`."""
    named = options.software is not None
    framework = load_framework(options.software, where="plan", key="--software") if named else None
    if framework is None:
        framework = usual_framework(devices[0].name)
        assumed.append(
            f"training software: none named; {framework.name}, what a competent team runs on {devices[0].name} today"
            " (--software)"
        )
    sized = framework_for(framework, model, devices[0].name) if habits else framework
    dtype = options.dtype or default_dtype(sized, devices)
    if sized != framework:
        sources = [each.source for each in framework.devices if devices[0].name in each.names]
        sources += [each.source for each in framework.sizes if each.parameters <= parameters_of(model)][-1:]
        assumed += [f"{framework.name}'s own recipes for such models and devices: {source}" for source in sources]
    if options.dtype is None and dtype != "bf16":
        assumed.append(f"{dtype}: what {framework.name} trains in on {devices[0].name} (--dtype)")
    if not habits:
        return framework, dtype
    if sized.narrow and dtype in NARROW_DTYPES:
        assumed.append(f"{', '.join(sized.narrow)}, as {framework.name} is run in {dtype} (--feature)")
    return sized.for_dtype(dtype), dtype


def framework_for(framework: Framework, model: Model, device: str) -> Framework:
    """Return `framework` with the habits of its recipes on `device` for models as large as `model`."""
    usual = framework.for_device(device)
    return usual.for_size(parameters_of(model)) if framework.sizes else usual


def parameters_of(model: Model) -> int:
    """Return all parameters of `model`."""
    return build_graph(model, shard=Shard(seq_len=model.seq_len, dtype="bf16"), degrees=()).parameters


def default_dtype(framework: Framework, devices: Collection[Device]) -> DType:
    """Return what `framework` trains in, or where not all of `devices` have that, the first of bf16, fp16 and fp32 that
    they have; its own where there is none, so that the refusal names it."""
    wanted = cast(DType, framework.dtype)
    types = (wanted, *WIDE_TYPES)
    return next((dtype for dtype in types if all(device.peak(dtype) is not None for device in devices)), wanted)
