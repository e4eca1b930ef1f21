"""Layers of a user's own model are measured where their code runs: in a process of its own, and not in this one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from estimator.profiling.setting import Setting
from models_zoo.layers import Layer, TracedLayer
from profiles.errors import InputError
from profiles.measurements import Measurement
from profiles.records import dataclass
from profiles.vocabulary import Infeasible, Shard

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from estimator.host.user_process import UserProcess

Outcome = Measurement | Infeasible


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerQuestion:
    """Contiguous layers of one model to measure, held as `shard`: one alone where `compiled` is None, else all as one
    piece. `path` is where the user's module is looked for."""

    layers: tuple[TracedLayer, ...]
    shard: Shard
    setting: Setting
    compiled: bool | None
    path: tuple[str, ...]


class MeasureUser(Protocol):
    """Measures layers of a user's model; `compiled` as in `LayerQuestion`."""

    def __call__(
        self, layers: Sequence[TracedLayer], shard: Shard, setting: Setting, *, compiled: bool | None = None
    ) -> Outcome: ...


def users_own(layers: Sequence[Layer]) -> tuple[TracedLayer, ...]:
    """Return those of `layers` that are of a user's own model: all or none."""
    return tuple(layer for layer in layers if isinstance(layer, TracedLayer))


@contextmanager
def user_layers() -> Iterator[MeasureUser]:
    """Give what measures layers of a user's model. Its process starts with the first of them and ends on leaving.

    The function raises InputError and MachineError as `UserProcess.ask`, and as `measure_layer` does.
    """
    with ExitStack() as stack:
        processes: list[UserProcess] = []

        def measure(
            layers: Sequence[TracedLayer], shard: Shard, setting: Setting, *, compiled: bool | None = None
        ) -> Outcome:
            if not processes:
                processes.append(stack.enter_context(_process(layers[0])))
            path = tuple(sys.path)
            question = LayerQuestion(layers=tuple(layers), shard=shard, setting=setting, compiled=compiled, path=path)
            return _read(layers[0], processes[0].ask(question_format().dump_python(question, mode="json")))

        yield measure


def _process(layer: TracedLayer) -> UserProcess:
    from estimator.host.user_process import UserProcess

    return UserProcess(
        "estimator.profiling.layer_worker",
        name=layer.factory.reference,
        expected="a model that can be measured",
        limit_s=layer.factory.limit_s,
    )


def _read(layer: TracedLayer, answer: Any) -> Outcome:
    from pydantic import ValidationError

    try:
        return outcome_format().validate_python(answer)
    except ValidationError as error:
        expected = "a measurement"
        raise InputError(where=layer.factory.reference, found="code that changed one", expected=expected) from error


@cache
def question_format() -> TypeAdapter[LayerQuestion]:
    """How questions go over, as values of JSON."""
    from pydantic import TypeAdapter

    return TypeAdapter(LayerQuestion)


@cache
def outcome_format() -> TypeAdapter[Outcome]:
    """How answers come back."""
    from pydantic import TypeAdapter

    return TypeAdapter(Outcome)
