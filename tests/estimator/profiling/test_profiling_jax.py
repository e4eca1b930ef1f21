"""Measuring local shards with JAX on the CPU, and reading its traces. Figures are checked for what must hold, never for
speed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tests.jax_flags  # noqa: F401  before JAX starts
from estimator.layers.shards import shard_layer
from estimator.profiling import device_jax, measure_jax
from estimator.profiling.device_jax import start_jax
from estimator.profiling.measure_jax import build_shard, measure_callable, measure_layer
from estimator.profiling.plan import ProfileTask
from estimator.profiling.rates_jax import identify_device, measure_rates
from estimator.profiling.setting import Repeats, Setting, layer_key
from estimator.profiling.training_jax import LEARNING_RATE, Training
from models_zoo.jax_layers.build import layer_function, local_shape
from models_zoo.layers import Attention, Classifier, ConvUnit, Experts, FeedForward, Head, Layer
from profiles.errors import InputError, MachineError
from profiles.measurements import Measurement
from profiles.vocabulary import Infeasible, LocalLayer, Shard
from tests.models_zoo.test_parameters import EVERY_LAYER, IMAGES
from tests.profiling_models import BLOCK, EMBEDDING, HEAD
from tests.seeds import some
from tests.traced_jax_layers import PARTIAL_GRADIENTS, compiled_flops, list_collectives
from tests.transformer_variants import shard

SHORT = Repeats(warm_up=1, least=2, least_s=0.0, most=3)
SETTING = Setting(repeats=SHORT)
SHARD = Shard(seq_len=16, micro_batch_per_rank=2, dtype="fp32")
LLAMA = replace(
    BLOCK,
    attention=Attention(heads=4, kv_heads=2, head_dim=8, rotary_dim=8),
    feed_forward=FeedForward(hidden=64, gated=True, activation="silu"),
)
MOE = replace(BLOCK, feed_forward=Experts(count=4, top_k=2, expert=FeedForward(hidden=64)), dropout=True)
FIRST = ConvUnit(c_in=8, c_out=16, height=8, width=8, kernel=3, padding=1, first=True)
CLASSIFIER = Classifier(features=(16 * 64, 12, 10), height=8, width=8, average_pool=False)
CROSS = replace(BLOCK, cross_attention=replace(BLOCK.self_attention, causal=False))


@pytest.fixture(autouse=True)
def sweep_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emptying the caches is for true figures; here it only takes time."""
    monkeypatch.setattr(measure_jax, "SWEPT_BYTES", 2**12)


def task_of(layer: Layer, local: Shard) -> ProfileTask:
    return ProfileTask(layer=layer, shard=local, name="layer", multiplicity=1)


def local_of(layer: Layer, local: Shard) -> LocalLayer:
    found = shard_layer(layer, local)
    assert isinstance(found, LocalLayer)
    return found


def measure(layer: Layer, local: Shard, setting: Setting = SETTING) -> Measurement:
    result = measure_layer(task_of(layer, local), setting)
    assert isinstance(result, Measurement), result
    return result


def training_of(layer: Layer, local: Shard, optimizer: str = "adamw") -> Training:
    start_jax(SETTING)
    return Training(*build_shard(layer, local), local, optimizer)


@pytest.mark.parametrize(
    ("layer", "local"),
    some(
        [
            (BLOCK, SHARD),
            (LLAMA, replace(SHARD, tp=4)),
            (MOE, replace(SHARD, tp=2)),
            (HEAD, replace(SHARD, tp=2)),
            (FIRST, replace(SHARD, seq_len=0)),
            (BLOCK, replace(SHARD, tp=2, sequence_parallel=True)),
            (BLOCK, replace(SHARD, dtype="bf16")),
            (EMBEDDING, SHARD),
            (CROSS, SHARD),
            (CLASSIFIER, replace(SHARD, seq_len=0)),
        ],
        5,
    ),
)
def test_a_shard_takes_time_both_ways_and_holds_what_the_analysis_says(layer: Layer, local: Shard) -> None:
    measured, expected = measure(layer, local), local_of(layer, local)
    assert len(measured.forward_s) == len(measured.backward_s) == len(measured.optimizer_s) >= 2
    assert min(*measured.forward_s, *measured.backward_s, *measured.optimizer_s) > 0
    assert measured.parameters == expected.parameters
    # JAX keeps more than torch's fused kernels do (the parts of a gelu, of a softmax), but nothing twice.
    assert 0.4 * expected.saved_bytes < measured.saved_bytes < 3.5 * expected.saved_bytes
    state = {"fp32": 4 * (1 + 1 + 2), "bf16": 2 + 2 + 4 + 8}[local.dtype]
    assert measured.peak_memory_bytes >= measured.parameters * state + measured.saved_bytes


def test_gradients_are_those_of_the_layer_and_add_up() -> None:
    """Two micro-batches give twice one's, of weights and the layer's own program."""
    function, params, inputs = build_shard(BLOCK, SHARD)
    training = Training(function, params, inputs, SHARD, "adamw")
    training.forward()
    (out,) = training.outputs
    training.backward()
    once = [np.asarray(x) for x in training.gradients]
    training.forward()
    training.backward()
    _, pull = jax.vjp(lambda p: function(p, *inputs), params)
    (expected,) = pull(jax.random.normal(jax.random.split(jax.random.key(1), 1)[0], out.shape, out.dtype))
    for first, twice, wanted in zip(once, training.gradients, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(first, wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(twice, 2 * first, rtol=1e-5)
    training.prepare()
    assert not any(np.asarray(x).any() for x in training.gradients)


def test_recomputation_gives_the_same_gradients_and_keeps_its_input_alone() -> None:
    full = replace(SHARD, recompute="full")
    one, other = training_of(BLOCK, SHARD), training_of(BLOCK, full)
    for training in (one, other):
        training.forward()
        training.backward()
    for mine, theirs in zip(one.gradients, other.gradients, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert other.saved_bytes() == local_of(BLOCK, full).input_bytes < one.saved_bytes()
    assert other.peak_bytes() > one.saved_bytes(), "built again in backward"


def test_neither_weights_nor_outputs_count_as_kept() -> None:
    """x -> exp(x @ w): backward needs x, w and the output, of which x alone is the layer's own to keep."""
    w, x = jnp.ones((8, 4)), jnp.ones((3, 8))
    training = Training(lambda w, x: jnp.exp(x @ w), w, (x,), SHARD, "sgd")
    training.forward()
    assert training.saved_bytes() == x.nbytes
    assert training.kept == []
    training.backward()
    np.testing.assert_allclose(training.gradients[0], x.T @ (np.exp(8) * training._output_gradients[0]), rtol=1e-5)


def test_adamw_does_what_torchs_does() -> None:
    import torch

    training = training_of(EMBEDDING, SHARD)
    before = [np.array(x) for x in training.weights]
    theirs = [torch.nn.Parameter(torch.from_numpy(x)) for x in before]
    optimizer = torch.optim.AdamW(theirs, lr=LEARNING_RATE)
    for _ in range(3):
        training.prepare()
        training.forward()
        training.backward()
        for parameter, gradient in zip(theirs, training.gradients, strict=True):
            parameter.grad = torch.from_numpy(np.array(gradient))
        training.step()
        optimizer.step()
    for mine, parameter in zip(training.weights, theirs, strict=True):
        np.testing.assert_allclose(mine, parameter.detach().numpy(), rtol=1e-5, atol=1e-7)


def test_sixteen_bit_weights_are_trained_through_fp32_masters() -> None:
    training = training_of(BLOCK, replace(SHARD, dtype="bf16"), "sgd")
    before = [np.array(x) for x in training.weights]
    training.forward()
    training.backward()
    gradients = [np.asarray(x, np.float32) for x in training.gradients]
    training.step()
    for old, gradient, new in zip(before, gradients, training.weights, strict=True):
        wanted = old.astype(np.float32) - LEARNING_RATE * gradient
        np.testing.assert_allclose(np.asarray(new, np.float32), jnp.asarray(wanted).astype(jnp.bfloat16), rtol=1e-2)
        assert new.dtype == jnp.bfloat16


def test_a_first_layer_hands_no_gradient_back() -> None:
    first = measure_jax._is_first
    assert first(FIRST)
    assert not first(replace(FIRST, first=False))
    function, params, inputs = build_shard(FIRST, SHARD)
    with_it, without = (
        Training(function, params, inputs, SHARD, "sgd", input_gradients=wanted) for wanted in (True, False)
    )
    for training, count in ((with_it, 1), (without, 0)):
        training.forward()
        _, of_inputs = training._backward_body(
            training.leaves, training.outputs, training.kept, training._output_gradients, training.gradients
        )
        assert len(of_inputs) == count


def test_a_users_function_is_measured_with_weights_of_any_tree() -> None:
    def build() -> tuple[Any, Any, tuple[Any, ...]]:
        params = ({"w": jnp.ones((16, 16))}, [jnp.zeros(16)], jnp.arange(4))
        return (
            lambda p, x, ids: (jnp.tanh(x @ p[0]["w"] + p[1][0])[ids], ids),
            params,
            (jnp.ones((8, 16)), jnp.arange(3)),
        )

    result = measure_callable(build, SHARD, SETTING)
    assert isinstance(result, Measurement), result
    assert result.parameters == 16 * 17
    assert len(result.optimizer_s) >= 2
    frozen = measure_callable(lambda: (lambda _, x: x * 2, (), (jnp.ones(4),)), SHARD, SETTING)
    assert isinstance(frozen, Measurement)
    assert (frozen.parameters, frozen.optimizer_s) == (0, ())


def test_what_does_not_fit_or_cannot_run_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    third = measure_layer(task_of(BLOCK, replace(SHARD, tp=3)), SETTING)
    assert third == shard_layer(BLOCK, replace(SHARD, tp=3))
    fp8 = measure_layer(task_of(BLOCK, replace(SHARD, dtype="fp8")), SETTING)
    assert isinstance(fp8, Infeasible)
    assert "fp8" in fp8.reason

    def refuse() -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")

    out_of_memory = measure_callable(refuse, SHARD, SETTING)
    assert isinstance(out_of_memory, Infeasible)
    assert (out_of_memory.lacking, "9 bytes" in out_of_memory.reason) == ("memory", True)
    monkeypatch.setattr(measure_jax, "free_host_memory_bytes", lambda: 1000)
    lacking = measure_layer(task_of(BLOCK, SHARD), SETTING)
    assert isinstance(lacking, Infeasible)
    assert lacking.lacking_bytes is not None
    assert lacking.lacking_bytes > local_of(BLOCK, SHARD).saved_bytes - 1000


def test_a_device_that_jax_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"--device: found cuda:77, expected one that JAX has here: cpu"):
        measure_layer(task_of(BLOCK, SHARD), replace(SETTING, device="cuda:77"))


def test_jax_started_with_other_threads_is_a_failure_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    start_jax(SETTING)
    monkeypatch.setattr(device_jax, "_cpu_threads", lambda: 5)
    with pytest.raises(MachineError, match="started with 5 threads in this process, expected 1"):
        start_jax(SETTING)


def test_jax_is_started_with_the_threads_wanted_and_the_environment_left() -> None:
    program = (
        "import os\n"
        "from estimator.profiling.device_jax import _cpu_threads, start_jax\n"
        "from estimator.profiling.setting import Setting\n"
        "before = dict(os.environ)\n"
        "start_jax(Setting(threads=3))\n"
        "assert dict(os.environ) == before\n"
        "assert _cpu_threads() in (3, None), _cpu_threads()\n"
    )
    clean = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "NPROC")}
    done = subprocess.run([sys.executable, "-c", program], env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_key_names_jax_and_nothing_of_torch() -> None:
    key = layer_key(BLOCK, SHARD, identify_device(SETTING), optimizer="adamw")
    assert key.software.startswith(f"jax {jax.__version__}, python 3.")
    assert (key.device, key.threads) == ("cpu", 1)
    program = (
        "import sys\n"
        "import estimator.profiling.measure_jax, estimator.profiling.rates_jax\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_rates_are_measured_and_refused_for_a_dtype_without_a_plain_product(monkeypatch: pytest.MonkeyPatch) -> None:
    from estimator.profiling import rates_jax, sampling

    monkeypatch.setattr(rates_jax, "_COPIED_BYTES", {"cpu": 2**16})
    monkeypatch.setattr(sampling, "LARGEST_PRODUCT", 512)
    rates = measure_rates(SETTING, "fp32")
    assert min(rates.memory_bytes, rates.memory_bandwidth_bytes_per_s, dict(rates.flops_per_s)["fp32"]) > 0
    with pytest.raises(InputError, match=r"--dtype: found fp8"):
        measure_rates(SETTING, "fp8")


TRACED = (
    *(f"block_{name}" for name in ("gpt", "qwen3", "multi_query", "full_norm", "gemma", "mla", "neox", "moe_shared")),
    *("block_decoder_pre", "embedding_bert", "embedding_opt_350m", "head_bert", "head_opt_350m", "head_bare"),
    *("conv", "strided", "identity", "vgg_end"),
)


@pytest.mark.parametrize("name", TRACED)
def test_collectives_are_those_of_the_analysis(name: str) -> None:
    """Forward and backward alike. JAX differs in when it sums gradients of weights that all ranks hold: each of them
    in every backward, and not those of key-value heads that some ranks share, which are the caller's."""
    layer = EVERY_LAYER[name]
    for tp, sequence_parallel in ((2, False), *(() if name in IMAGES else ((4, True),))):
        local = replace(shard(tp, sequence_parallel), seq_len=0 if name in IMAGES else 8)
        found, expected = list_collectives(layer, local), local_of(layer, local).collectives
        assert {c.ranks for c in found} <= {tp}
        passed = Counter((c.op, c.bytes, c.phase) for c in found if not c.name)
        assert passed == Counter((c.op, c.bytes, c.phase) for c in expected if c.phase != "step")
        sums = [c for c in found if c.name]
        assert {(c.op, c.phase, c.name) for c in sums} <= {("all_reduce", "backward", PARTIAL_GRADIENTS)}
        once_a_step = sum(c.bytes for c in expected if c.phase == "step")
        function = layer_function(layer, local)
        shared = sum(4 * prod(local_shape(p, tp)) for p in function.parameters if p.name in function.shared_by)
        assert sum(c.bytes for c in sums) == once_a_step - shared


def test_one_rank_needs_no_collectives() -> None:
    assert list_collectives(BLOCK, SHARD) == ()


@pytest.mark.parametrize("name", [name for name in TRACED if name not in ("conv", "strided")])
def test_matrix_flops_are_those_of_the_analysis(name: str) -> None:
    """With plain attention: a fused kernel's backward computes the scores once more. The compiler counts element-wise
    work besides."""
    layer = EVERY_LAYER[name]
    local = replace(shard(2, False), attention="math")
    found, expected = compiled_flops(layer, local), local_of(layer, local)
    assert found.matrix_forward == expected.forward_flops
    if name not in IMAGES:
        assert found.matrix_training == expected.forward_flops + expected.backward_flops
    if expected.forward_flops and name not in IMAGES:
        assert found.matrix_forward < found.compiler_forward < 2 * found.matrix_forward + 40_000
        assert found.matrix_training < found.compiler_training < 2 * found.matrix_training + 120_000


def test_a_heads_flops_are_mostly_its_product() -> None:
    """Where the product is large, the compiler's count and the program's are nearly one."""
    found = compiled_flops(Head(hidden=512, vocab=1000), Shard(seq_len=64, dtype="fp32"))
    assert found.compiler_training == pytest.approx(found.matrix_training, rel=0.02)
