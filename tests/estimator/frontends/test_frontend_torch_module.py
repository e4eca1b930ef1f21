"""The torch frontend against torch itself: FLOPs, saved tensors, parameters, and cuts counted by hand."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from estimator.frontends.torch_module import load_module_model
from estimator.frontends.torch_piece import build_traced
from estimator.frontends.user_model import load_here
from estimator.layers.graph import build_graph, shared_weights
from estimator.layers.shards import shard_layer
from models_zoo.layers import SharedWeights, TracedLayer
from models_zoo.model import Model
from models_zoo.user_code import UserFactory
from profiles.errors import InputError
from profiles.measurements import canonical
from profiles.vocabulary import Infeasible, LocalLayer, Shard
from tests import traced_modules as modules

aten = torch.ops.aten
# torch's registry omits the CPU's fused attention; the formulas are its own.
ON_CPU: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda g, q, k, v, *_, **__: sdpa_backward_flop_count(
        g, q, k, v
    ),
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Modules and inputs that a test makes for real are the same in every run."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def traced() -> Callable[[str], Model]:
    """Each module of `tests.traced_modules` traced once."""
    known: dict[str, Model] = {}

    def load(name: str) -> Model:
        if name not in known:
            known[name] = load_module_model(UserFactory(reference=f"tests.traced_modules:{name}"))
        return known[name]

    return load


def locals_of(model: Model, shard: Shard) -> list[LocalLayer]:
    found = [shard_layer(layer, shard) for layer in model.layers]
    assert all(isinstance(one, LocalLayer) for one in found), found
    return [one for one in found if isinstance(one, LocalLayer)]


def observe(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[int, int, int]:
    """FLOPs forward and backward, and bytes kept between, outputs not counted, of a real run."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with (
        FlopCounterMode(display=False, custom_mapping=ON_CPU) as forward,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        found = module(*inputs)
    outputs = [out for out in (found if isinstance(found, tuple) else (found,)) if out.requires_grad]
    with FlopCounterMode(display=False, custom_mapping=ON_CPU) as backward:
        torch.autograd.backward(outputs, [torch.ones_like(out) for out in outputs])
    for tensor in (*module.parameters(), *module.buffers(), *outputs):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return forward.get_total_flops(), backward.get_total_flops(), sum(kept.values())


def resized(inputs: tuple[Tensor, ...], batch: int) -> tuple[Tensor, ...]:
    return tuple(x[torch.arange(batch) % x.shape[0]] for x in inputs)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("name", ["mlp", "skip_net", "tiny_gpt", "recurrent"])
def test_layers_add_up_to_the_module_as_torch_counts_it(name: str, batch: int, traced: Callable[[str], Model]) -> None:
    model = traced(name)
    module, inputs = getattr(modules, name)()
    forward, backward, saved = observe(module, resized(inputs, batch))
    found = locals_of(model, Shard(micro_batch_per_rank=batch, dtype="fp32"))
    assert sum(one.forward_flops for one in found) == forward
    assert sum(one.backward_flops for one in found) == backward
    assert sum(one.saved_bytes for one in found) == saved
    graph = build_graph(model, shard=Shard(dtype="fp32"))
    assert graph.parameters == sum(p.numel() for p in module.parameters())


def test_a_chain_of_linear_layers_by_hand(traced: Callable[[str], Model]) -> None:
    model, shard = traced("mlp"), Shard(micro_batch_per_rank=5, dtype="fp32")
    assert model.layer_names == ("0", "2", "4")
    assert model.kind == "module"
    first, second, last = locals_of(model, shard)
    assert [one.parameters for one in (first, second, last)] == [16 * 32 + 32, 32 * 32 + 32, 32 * 4 + 4]
    assert [op.shape for op in second.operators if op.kind == "gemm"] == [(5, 32, 32)]
    assert (first.forward_flops, first.backward_flops) == (2 * 5 * 16 * 32, 2 * 5 * 16 * 32)  # no input gradient
    assert (second.forward_flops, second.backward_flops) == (2 * 5 * 32 * 32, 4 * 5 * 32 * 32)
    assert (first.input_bytes, first.output_bytes, second.output_bytes) == (5 * 16 * 4, 5 * 32 * 4, 5 * 32 * 4)
    # The ReLU between keeps its output, which is the next product's input and counts there.
    assert [one.saved_bytes for one in (first, second, last)] == [5 * 16 * 4, 5 * 32 * 4, 5 * 32 * 4]
    halved = locals_of(model, Shard(micro_batch_per_rank=5, dtype="bf16"))
    assert [one.saved_bytes * 2 for one in halved] == [one.saved_bytes for one in (first, second, last)]
    assert [one.forward_flops for one in halved] == [one.forward_flops for one in (first, second, last)]


def test_what_crosses_each_cut_by_hand(traced: Callable[[str], Model]) -> None:
    model, batch = traced("skip_net"), 3
    assert model.layer_names == ("stem", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "head")
    found = locals_of(model, Shard(micro_batch_per_rank=batch, dtype="fp32"))
    one_map = batch * 8 * 6 * 10 * 4
    # The first block's output goes over the cuts up to its addition to the third's, which is part of the third layer.
    # The classes, an input, cross no cut; the mean over the last map is part of the last layer.
    crossing = [one_map, one_map, 2 * one_map, one_map, one_map]
    assert [one.output_bytes for one in found[:-1]] == crossing
    assert [one.input_bytes for one in found[1:]] == crossing
    assert found[0].input_bytes == batch * (3 * 6 * 10 * 4 + 8)
    assert found[-1].output_bytes == 4
    conv = next(op for op in found[1].operators if op.kind == "conv")
    assert conv.shape == (batch, 8, 8, 6, 10, 3, 3, 1)


def test_equal_blocks_are_one_layer_and_tied_weights_count_once(traced: Callable[[str], Model]) -> None:
    model = traced("tiny_gpt")
    assert model.layer_names == ("tokens", *(f"blocks.{i}" for i in range(modules.BLOCKS)), "head")
    assert Counter(model.layers).most_common(1)[0][1] == modules.BLOCKS
    assert len(set(model.layers)) == 3
    table = modules.VOCAB * modules.HIDDEN
    assert shared_weights(model, 1) == (SharedWeights(parameters=table, holders=(0, modules.BLOCKS + 1)),)
    again = load_module_model(UserFactory(reference="tests.traced_modules:tiny_gpt"))
    assert again == model


def test_a_plan_leaves_the_profiles_of_one_rank_valid(traced: Callable[[str], Model]) -> None:
    """A profile's key has the layer's canonical text; layers that split otherwise are nonetheless not equal."""
    plain, planned = traced("tiny_gpt").layers, traced("tiny_gpt_with_plan").layers
    assert [canonical(layer) for layer in plain] == [canonical(layer) for layer in planned]
    assert plain[1] != planned[1]
    assert len({plain[1], plain[2], planned[1], planned[2]}) == 2


def test_a_torch_without_what_tracing_needs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "estimator.frontends.torch_private")
    monkeypatch.delitem(sys.modules, "estimator.frontends.torch_module")
    monkeypatch.delitem(sys.modules, "estimator.frontends.torch_cut")
    monkeypatch.delattr(torch.autograd, "_get_sequence_nr")
    with pytest.raises(InputError, match=r"torch: found .*_get_sequence_nr.*expected 2\.5 to 2\.13"):
        load_here(UserFactory(reference="tests.traced_modules:mlp"))


def hugging_face_gpt2() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=5,
        n_embd=32,
        n_head=4,
        n_positions=64,
        vocab_size=96,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation="eager",
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
    )
    return GPT2LMHeadModel(config), (torch.randint(96, (2, 24)),)


def test_a_hugging_face_model_as_torch_counts_it() -> None:
    model = load_module_model(UserFactory(reference=f"{__name__}:hugging_face_gpt2"))
    blocks = tuple(f"transformer.h.{i}" for i in range(5))
    assert model.layer_names == ("transformer.wte", *blocks, "lm_head")
    assert len(set(model.layers)) == 3
    module, inputs = hugging_face_gpt2()
    with FlopCounterMode(display=False) as forward:
        logits = module(*inputs).logits
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    found = locals_of(model, Shard(micro_batch_per_rank=2, dtype="fp32"))
    assert sum(one.forward_flops for one in found) == forward.get_total_flops()
    assert sum(one.backward_flops for one in found) == backward.get_total_flops()
    assert build_graph(model, shard=Shard()).parameters == sum(p.numel() for p in module.parameters())
    # Positions and the causal mask depend on no input and cross no cut.
    assert {one.output_bytes for one in found[:-1]} == {2 * 24 * 32 * 4}


def test_kernels_of_a_gpu_stand_for_those_that_a_cpu_lacks(traced: Callable[[str], Model]) -> None:
    first, second = locals_of(traced("dropped"), Shard(micro_batch_per_rank=4, dtype="fp32"))
    assert first.saved_bytes == 4 * 16 * (4 + 1)  # its input, and a mask of a byte an element
    assert second.saved_bytes == 4 * 16 * 4
    block = traced("tiny_gpt").layers[1]
    fused, split = (shard_layer(block, Shard(micro_batch_per_rank=2, attention=kernel)) for kernel in ("flash", "math"))
    assert isinstance(fused, LocalLayer)
    assert isinstance(split, LocalLayer)
    heads, square = modules.HIDDEN // modules.HEAD, 16 * 16
    product = 2 * 2 * heads * square * modules.HEAD
    assert [op.shape for op in fused.operators if op.kind == "attention"] == [(2, heads, heads, 16, 16, 8, 8, 1)]
    assert fused.backward_flops - split.backward_flops == product  # no scores again
    assert fused.forward_flops == split.forward_flops
    assert split.saved_bytes - fused.saved_bytes == 2 * heads * square * 2


@pytest.mark.parametrize("name", ["casts_itself", "needs_values"])
def test_factories_that_fake_tensors_cannot_run(name: str, traced: Callable[[str], Model]) -> None:
    (local,) = locals_of(traced(name), Shard(micro_batch_per_rank=3, dtype="bf16"))
    assert local.forward_flops == 2 * 3 * (16 if name == "casts_itself" else 17) * 4


@pytest.mark.parametrize("tp", [2, 4])
def test_a_tensor_parallel_plan_by_hand(tp: int, traced: Callable[[str], Model]) -> None:
    model, batch = traced("tiny_gpt_with_plan"), 3
    rows, hidden, inner = batch * 16, modules.HIDDEN, modules.INNER
    shard = Shard(tp=tp, micro_batch_per_rank=batch, dtype="fp32")
    whole, split = (locals_of(model, s)[1] for s in (Shard(micro_batch_per_rank=batch, dtype="fp32"), shard))
    assert split.forward_flops * tp == whole.forward_flops
    assert split.backward_flops * tp == whole.backward_flops
    assert [op.shape for op in split.operators if op.kind == "gemm"] == [
        *[(rows, hidden // tp, hidden)] * 3,
        (rows, hidden, hidden // tp),
        (rows, inner // tp, hidden),
        (rows, hidden, inner // tp),
    ]
    on_all = 2 * 2 * hidden + hidden  # two norms, and the bias after the last sum
    assert split.replicated_parameters == on_all
    assert split.parameters == (4 * hidden * hidden + 2 * hidden * inner + inner) // tp + on_all
    activation = rows * hidden * 4
    assert Counter((c.op, c.phase, c.bytes, c.ranks) for c in split.collectives) == {
        ("all_reduce", "forward", activation, tp): 2,
        ("all_reduce", "backward", activation, tp): 2,
    }
    assert (split.input_bytes, split.output_bytes) == (activation, activation)
    assert len(set(model.layers)) == 3


def test_a_sequence_parallel_plan_by_hand(traced: Callable[[str], Model]) -> None:
    model, batch, tp = traced("tiny_gpt_with_sequence_parallel_plan"), 3, 2
    first, block, *_, last = locals_of(model, Shard(tp=tp, micro_batch_per_rank=batch, dtype="fp32"))
    activation = batch * 16 * modules.HIDDEN * 4

    def seen(local: LocalLayer) -> Counter[tuple[str, str, int]]:
        return Counter((c.op, c.phase, c.bytes) for c in local.collectives)

    assert seen(block) == {
        (op, phase, activation): 2 for op in ("all_gather", "reduce_scatter") for phase in ("forward", "backward")
    }
    assert seen(first) == {("reduce_scatter", "forward", activation): 1, ("all_gather", "backward", activation): 1}
    logits = batch * 16 * modules.VOCAB * 4
    assert seen(last) == {
        ("all_gather", "forward", activation): 1,
        ("all_gather", "forward", logits): 1,
        ("reduce_scatter", "backward", activation): 1,
    }
    assert (block.input_bytes, block.output_bytes) == (activation // tp, activation // tp)
    # The table's rows are split, and the head still shares them.
    assert first.parameters == modules.VOCAB * modules.HIDDEN // tp
    assert [one.parameters for one in shared_weights(model, tp)] == [modules.VOCAB * modules.HIDDEN // tp]


def test_degrees_that_cannot_be_had_say_why(traced: Callable[[str], Model]) -> None:
    def refusal(name: str, tp: int) -> Infeasible:
        found = shard_layer(traced(name).layers[0], Shard(tp=tp))
        assert isinstance(found, Infeasible)
        return found

    assert refusal("mlp", 2).reason == "tp = 2: the model brings no tensor-parallel plan"
    assert refusal("mlp", 2).lacking == "support"
    assert refusal("tiny_gpt_with_plan", 16).reason == "tp = 16: its plan was traced at tp = 1, 2, 4"
    undivided = refusal("undivided_plan", 4)
    assert undivided.lacking == "divisibility"
    assert "0.weight has 6 elements in dimension 0, which do not divide by tp = 4" in undivided.reason
    # Four heads do not go over eight ranks: torch says so when the module views its heads.
    assert "tp = 8" in refusal("tiny_gpt_with_plan", 8).reason
    assert not dist.is_initialized()


@pytest.mark.parametrize("name", ["mlp", "skip_net", "tiny_gpt", "dropped", "recurrent"])
def test_pieces_run_and_do_what_their_layers_say(name: str, traced: Callable[[str], Model]) -> None:
    shard = Shard(micro_batch_per_rank=3, dtype="fp32")
    for layer, local in zip(traced(name).layers, locals_of(traced(name), shard), strict=True):
        assert isinstance(layer, TracedLayer)
        module, inputs = build_traced([layer], shard, "cpu")
        forward, backward, saved = observe(module, inputs)
        assert (forward, backward) == (local.forward_flops, local.backward_flops)
        assert sum(p.numel() for p in module.parameters()) == local.parameters
        if name in ("mlp", "tiny_gpt"):  # elsewhere a layer keeps its output for itself, or the CPU's dropout a float
            assert saved == local.saved_bytes


@pytest.mark.parametrize("name", ["mlp", "skip_net", "tiny_gpt"])
def test_pieces_in_a_row_compute_what_the_module_does(name: str, traced: Callable[[str], Model]) -> None:
    """With the module's own weights, from real inputs; a piece finds its inputs by the names the export gave them."""
    module, inputs = getattr(modules, name)()
    inputs, shard = resized(inputs, 3), Shard(micro_batch_per_rank=3, dtype="fp32")
    state = {key.replace(".", "_"): value.clone() for key, value in module.state_dict().items()}
    layers = [layer for layer in traced(name).layers if isinstance(layer, TracedLayer)]
    whole, _ = build_traced(layers, shard, "cpu")
    known = dict(zip(names_in(whole, "placeholder"), inputs, strict=True))
    made: tuple[Tensor, ...] = ()
    for layer in layers:
        piece, _ = build_traced([layer], shard, "cpu")
        piece.load_state_dict({key: state[key[2:]] for key in piece.state_dict()})
        made = piece(*(known[key] for key in names_in(piece, "placeholder")))
        known |= dict(zip(names_in(piece, "output"), made, strict=True))
    torch.testing.assert_close(made[-1], module(*inputs))
    whole.load_state_dict({key: state[key[2:]] for key in whole.state_dict()})
    torch.testing.assert_close(whole(*inputs)[-1], made[-1])


def names_in(piece: Any, kind: str) -> list[str]:
    nodes = [node for node in piece.graph.nodes if node.op == kind]
    return [source.name for source in nodes[0].all_input_nodes] if kind == "output" else [n.target for n in nodes]


def test_a_piece_is_refused_where_it_cannot_run() -> None:
    model = load_module_model(UserFactory(reference="tests.traced_modules:mlp"))
    layers = [layer for layer in model.layers if isinstance(layer, TracedLayer)]
    with pytest.raises(NotImplementedError, match="found tp = 2"):
        build_traced(layers, Shard(tp=2, dtype="fp32"), "cpu")


@pytest.mark.parametrize(
    ("reference", "found", "expected"),
    [
        ("nowhere.at_all:factory", "ModuleNotFoundError: No module named 'nowhere'", "can be imported from here"),
        ("tests.traced_modules:missing", "no missing in ", "a function that returns a tuple (module, example_inputs)"),
        ("tests.traced_modules:not_callable", "not_callable, int (3)", "a function that returns"),
        ("tests.traced_modules:breaks", "KeyError: 'checkpoint'", "a tuple (module, example_inputs)"),
        ("tests.traced_modules:no_tuple", "found Linear, ", "a tuple (module, example_inputs)"),
        ("tests.traced_modules:no_module", "module: found str ('linear')", "a torch.nn.Module"),
        ("tests.traced_modules:no_batch", "shapes (2, 8), ()", "the batch, of one size, as their first dimension"),
        ("tests.traced_modules:two_batches", "shapes (2, 8), (3, 8)", "the batch, of one size"),
        ("tests.traced_modules:wrong_plan", "tp_plan: found dict of str", "as parallelize_module takes"),
        ("tests.traced_modules:wrong_size", "RuntimeError: ", "trains on its example inputs"),
        ("tests.traced_modules:routed", "aten.nonzero.default", "do not depend on the values of tensors"),
        ("tests.traced_modules:branching", "aten._local_scalar_dense", "do not depend on the values of tensors"),
        (
            "tests.traced_modules:odd_batch",
            "other operators in batches of 2 and 4",
            "the same work for every batch size",
        ),
        ("tests.traced_modules:frozen", "no output of the module needs a gradient", "trains on its example inputs"),
    ],
)
def test_what_is_wrong_is_named(reference: str, found: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        load_module_model(UserFactory(reference=reference))
    message = str(caught.value)
    assert message.startswith(reference)
    assert found in message
    assert expected in message
    assert "\n" not in message


def test_a_file_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import torch\n\ndef small():\n    return torch.nn.Linear(3, 2), (torch.randn(2, 3),)\n"
    (tmp_path / "own_module_of_a_user.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    model = load_module_model(UserFactory(reference="own_module_of_a_user:small"))
    assert build_graph(model, shard=Shard()).parameters == 8


def test_what_a_factory_prints_stays_out_of_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    load_module_model(UserFactory(reference="tests.traced_modules:talkative"))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "building" in printed.err


def test_a_bare_tensor_is_an_example_of_one_input() -> None:
    assert load_module_model(UserFactory(reference="tests.traced_modules:bare_tensor")).layers
