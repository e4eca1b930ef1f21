"""The process in which layers of a user's model are built and measured: `user_layers.py` asks for it."""

from __future__ import annotations

from functools import cache
from typing import Any

from estimator.frontends.factory import add_to_path
from estimator.host.answering import serve
from estimator.profiling.frameworks import Profiler, load_profiler
from estimator.profiling.plan import ProfileTask
from estimator.profiling.setting import Setting
from estimator.profiling.user_layers import LayerQuestion, Outcome, outcome_format, question_format


def measure(question: dict[str, Any]) -> Any:
    """Return what the layers of the question take, or why they cannot be measured, as a value of JSON."""
    dump = outcome_format().dump_python
    asked = question_format().validate_python(question)
    add_to_path(asked.path)
    return dump(_measure(asked), mode="json")


def _measure(asked: LayerQuestion) -> Outcome:
    profiler = _started(asked.setting.framework, asked.setting.device, asked.setting.threads)
    if asked.compiled is not None:
        from estimator.profiling.stage_torch import measure_stage

        return measure_stage(asked.layers, asked.shard, asked.setting, compiled=asked.compiled)
    (layer,) = asked.layers
    task = ProfileTask(layer=layer, shard=asked.shard, name=layer.factory.reference, multiplicity=1)
    return profiler.measure_layer(task, asked.setting)


@cache
def _started(framework: Any, device: str, threads: int) -> Profiler:
    profiler = load_profiler(framework)
    profiler.start(Setting(framework=framework, device=device, threads=threads))
    return profiler


if __name__ == "__main__":
    serve(measure)
