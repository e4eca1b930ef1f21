"""Megatron-LM's command lines read as explicit plans."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from estimator.frontends.load import load_file_model
from models_zoo.layers import Experts, TransformerBlock
from planner.one_job.tools.base.import_records import Imported
from planner.one_job.tools.base.pipeline import even_blocks, layout_blocks, uneven_blocks, with_blocks
from planner.one_job.tools.megatron.arguments import known_arguments, read_arguments
from planner.one_job.tools.megatron.read import read_megatron
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import InputError
from tests.planner.one_job.explicit.explicit_plan_examples import setup_of
from tests.planner.one_job.importing.importing_examples import (
    PARALLEL,
    SMALL_MEGATRON,
    check_read_as,
    estimate,
    published,
)

LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention"
    " --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --swiglu"
    " --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear --attention-dropout 0"
    f" --hidden-dropout 0 {PARALLEL}"
)


def read(text: str, model: str | None = None) -> Imported:
    return read_megatron(text, model=model, options=EstimateOptions())


def blocks_of(found: Imported) -> list[TransformerBlock]:
    return [layer for layer in found.model.model.layers if isinstance(layer, TransformerBlock)]


@pytest.mark.parametrize("entry", published("megatron"))
def test_published_command_lines_are_legal_settings_of_the_published_size(entry: dict[str, Any]) -> None:
    words = f"{entry['launcher']} {entry['arguments']} {entry.get('added', '')}"
    check_read_as(entry, estimate("megatron", words, entry["cluster"]))


@pytest.mark.parametrize("entry", [one for one in published("megatron") if "added" in one.values[0]])
def test_a_tokenizer_whose_size_nobody_knows_is_asked_for(entry: dict[str, Any]) -> None:
    # As many experts a token as no model of the zoo has: layers that it knows would tell the vocabulary.
    unknown = re.sub(r"--moe-router-topk \d+", "--moe-router-topk 3", entry["arguments"])
    assert unknown != entry["arguments"]
    with pytest.raises(InputError, match="--vocab-size: found nothing, and HuggingFaceTokenizer"):
        read(unknown)


def test_a_vocabulary_that_is_not_stated_may_follow_from_the_layers() -> None:
    found = read(f"{LLAMA} --tokenizer-type HuggingFaceTokenizer")
    assert found.model.reference == "llama3-8b"
    assert any("128256" in sentence and "llama3-8b" in sentence for sentence in found.assumptions)


def test_every_argument_is_of_one_kind_and_used_ones_are_read() -> None:
    folder = Path(__file__).resolve().parents[4] / "planner" / "one_job" / "tools" / "megatron"
    files = ("read.py", "software.py", "arguments.py", "model.py", "names.py", "traits.py")
    sources = "".join((folder / name).read_text(encoding="utf-8") for name in files)
    used = [name for name, argument in known_arguments().items() if argument.role == "used"]
    assert len(known_arguments()) > 600
    assert [name for name in used if f'"{name}"' not in sources] == []


def test_arguments_without_effect_are_silent_and_others_are_told() -> None:
    quiet = read(f"{SMALL_MEGATRON} --lr 1e-4 --save x --log-interval 1 --seed 5 --data-path a b c --no-load-optim")
    assert quiet.assumptions == ()
    said = read(
        f"{SMALL_MEGATRON} --tensor-model-paralel-size 2 --frobnicate 3 --use-sharp --mtp-num-layers 1"
    ).assumptions
    assert said == (
        "--tensor-model-paralel-size is not understood, and not in the estimate; the nearest known is"
        " --tensor-model-parallel-size",
        "--frobnicate is not understood, and not in the estimate",
        "--use-sharp: not modelled; gradients are priced as summed by the links' own way",
        "--mtp-num-layers: not modelled; multi-token prediction is left out",
    )
    assert read(f"{SMALL_MEGATRON} --mtp-num-layers 0 --fp8-recipe delayed").assumptions == ()


def test_arguments_of_unfused_attention_matter_there_alone() -> None:
    assert not read(f"{SMALL_MEGATRON} --no-masked-softmax-fusion").assumptions
    found = read(f"{SMALL_MEGATRON} --no-masked-softmax-fusion --attention-backend unfused")
    assert found.options["attention"] == "math"
    assert any("--no-masked-softmax-fusion: not modelled" in sentence for sentence in found.assumptions)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("", {"tp": 1, "pp": 1, "cp": 1, "vpp": 1, "recompute": "none", "zero": 0, "overlap": (), "dtype": "bf16"}),
        ("--sequence-parallel", {"sequence_parallel": False}),
        ("--tensor-model-parallel-size=2 --sequence-parallel", {"tp": 2, "sequence_parallel": True}),
        ("--recompute-activations", {"recompute": "selective"}),
        ("--recompute-granularity selective", {"recompute": "selective"}),
        ("--recompute-granularity selective --recompute-modules moe_act layernorm", {"recompute": "selective"}),
        ("--recompute-granularity selective --recompute-modules nothing_known", {"recompute": "none"}),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", {"recompute": "full"}),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 3", {"recompute": "full:3"}),
        ("--activations-checkpoint-method block --activations-checkpoint-num-layers 2", {"recompute": "full:2"}),
        ("--checkpoint-activations", {"recompute": "full"}),
        ("--use-distributed-optimizer --overlap-grad-reduce", {"zero": 1, "overlap": ("dp",)}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", {"zero": 3}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"zero": 2}),
        ("--use-torch-fsdp2", {"zero": 3, "overlap": ("dp",)}),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", {"zero": 2}),
        ("--fp8-format hybrid", {"dtype": "fp8", "grad_dtype": "fp32"}),
        ("--fp8-format e4m3 --fp8-recipe tensorwise", {"dtype": "fp8"}),
        ("--fp8-format e4m3 --fp8-recipe blockwise", {"dtype": "fp8_block"}),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", {"dtype": "mxfp8"}),
        ("--fp4-format e2m1 --fp4-recipe nvfp4", {"dtype": "nvfp4"}),
        ("--fp8-recipe mxfp8", {"dtype": "bf16"}),
        ("--cpu-offloading-num-layers 2", {"offload": ("activations",)}),
        ("--grad-reduce-in-bf16", {"grad_dtype": "bf16"}),
        ("--optimizer sgd", {"optimizer": "sgd"}),
        ("--optimizer dist_muon", {"optimizer": "muon"}),
        ("--optimizer-cpu-offload", {"offload": ("optimizer",)}),
        ("--attention-backend flash", {"attention": "flash"}),
        ("--transformer-impl local", {"attention": "math", "software": "megatron-lm"}),
        ("--use-legacy-models --use-flash-attn", {"attention": "flash", "software": "megatron-lm"}),
        ("--make-vocab-size-divisible-by 64", {"vocab_pad": 64}),
        ("--padded-vocab-size 5120", {"vocab_pad": 1}),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2", {"vpp": 2, "overlap": ("p2p",)}),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4", {"vpp": 4}),
        (
            "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication"
            " --tp-comm-overlap",
            {"schedule": "interleaved", "overlap": ("tp",)},
        ),
    ],
)
def test_arguments_mean_options(words: str, options: dict[str, Any]) -> None:
    found = read(f"{SMALL_MEGATRON} {words}").options
    assert {name: found.get(name) for name in options} == options


def test_precision_is_fp32_unless_told_and_fp16_sums_gradients_in_fp16() -> None:
    plain = SMALL_MEGATRON.replace("--bf16", "")
    assert read(plain).options["dtype"] == "fp32"
    assert read(f"{plain} --fp16").options["grad_dtype"] == "fp16"
    assert read(f"{plain} --fp16 --accumulate-allreduce-grads-in-fp32").options["grad_dtype"] == "fp32"


def test_without_a_global_batch_there_is_one_micro_batch() -> None:
    found = read(SMALL_MEGATRON.replace("--global-batch-size 16", "")).options
    assert found["micro_batches"] == 1
    assert "global_batch" not in found


@pytest.mark.parametrize(
    ("words", "software"),
    [
        ("", {"fused_cross_entropy": False, "fused_accumulation": True}),
        ("--cross-entropy-loss-fusion", {"fused_cross_entropy": True}),
        ("--no-gradient-accumulation-fusion", {"fused_accumulation": False}),
        ("--no-bias-dropout-fusion --no-bias-gelu-fusion", {"kernels": "eager"}),
        ("--cuda-graph-impl local", {"launch": "graph_layers"}),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", {"launch": "graph"}),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router", {"launch": "graph_dense"}),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope moe_router", {"launch": "graph_router"}),
        ("--enable-cuda-graph", {"launch": "graph_layers"}),
        (
            "--recompute-granularity selective --recompute-modules moe_act layernorm",
            {"selective": ("layernorm", "moe_act")},
        ),
        ("--deterministic-mode", {"deterministic": True}),
        (
            "--fp8-format e4m3 --fp8-multi-head-attention --fp8-param-gather",
            {"fp8_attention": "yes", "narrow_parameters": True},
        ),
        ("--fp8-format hybrid", {"fp8_scaling": None}),
        ("--fp8-format e4m3 --fp8-recipe tensorwise", {"fp8_scaling": "current"}),
        ("--fp8-format e4m3 --first-last-layers-bf16", {"wide_first": 1, "wide_last": 1}),
        (
            "--fp4-format e2m1 --first-last-layers-bf16 --num-layers-at-start-in-bf16 0 --num-layers-at-end-in-bf16 3",
            {"wide_first": 0, "wide_last": 3},
        ),
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", {"moments": "bf16"}),
        ("--use-precision-aware-optimizer", {"moments": None}),
        ("--cpu-offloading-num-layers 2", {"offloaded_share": 0.25}),
        ("--moe-token-dispatcher-type flex --moe-enable-deepep", {"dispatch": "deduplicated"}),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", {"dispatch": "hybrid"}),
        ("--num-experts 4 --moe-grouped-gemm", {"grouped_products": None, "shared_beside": False}),
        ("--num-experts 4 --moe-grouped-gemm --use-transformer-engine-op-fuser", {"grouped_products": "fused"}),
        ("--num-experts 4 --moe-shared-expert-overlap", {"grouped_products": "sequential", "shared_beside": True}),
        ("--moe-token-dispatcher-type flex", {"dispatch": "deduplicated"}),
        ("--overlap-grad-reduce --ddp-bucket-size 40000000", {"bucket_bytes": 160_000_000}),
    ],
)
def test_arguments_turn_features_of_the_software(words: str, software: dict[str, Any]) -> None:
    found = read(f"{SMALL_MEGATRON} {words}").software
    assert {name: found.get(name) for name in software} == software


# The model


def test_layers_of_a_zoo_model_keep_its_name() -> None:
    assert read(f"{LLAMA} --vocab-size 128256").model.reference == "llama3-8b"
    assert read(f"{LLAMA} --vocab-size 32000").model.config is not None
    sizes = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024"
    gpt = f"{sizes} --max-position-embeddings 1024 {PARALLEL}"
    assert read(gpt).model.reference == "gpt2-350m"
    assert read(f"{gpt} --hidden-dropout 0 --attention-dropout 0").model.reference is None


def test_defaults_are_megatrons() -> None:
    (block,) = set(blocks_of(read(SMALL_MEGATRON)))
    assert (block.norm, block.dropout, block.self_attention.qkv_bias, block.self_attention.output_bias) == (
        "layernorm",
        True,
        True,
        True,
    )
    assert (block.feed_forward.hidden, block.feed_forward.gated) == (2048, False)  # type: ignore[union-attr]
    (gated,) = set(blocks_of(read(f"{SMALL_MEGATRON} --swiglu --disable-bias-linear --add-qkv-bias")))
    assert gated.feed_forward.hidden == 1344  # type: ignore[union-attr]  # 8/3 h in multiples of 64
    assert (gated.self_attention.qkv_bias, gated.self_attention.output_bias) == (True, False)


def test_experts_stand_where_the_frequency_says() -> None:
    moe = f"{SMALL_MEGATRON} --num-experts 4 --moe-ffn-hidden-size 256 --moe-shared-expert-intermediate-size 512"
    for frequency, sparse in (
        ("2", [True, False] * 4),
        ("'([0]*2+[1]*6)'", [False] * 2 + [True] * 6),
        ("\"'([1]*3+[0])*2'\"", [True, True, True, False] * 2),
    ):
        blocks = blocks_of(read(f"{moe} --moe-layer-freq {frequency}"))
        assert [isinstance(block.feed_forward, Experts) for block in blocks] == sparse
    (block,) = set(blocks_of(read(f"{moe} --moe-router-topk 1 --moe-shared-expert-gate")))
    experts = block.feed_forward
    assert isinstance(experts, Experts)
    assert (experts.count, experts.top_k, experts.expert.hidden) == (4, 1, 256)
    assert (experts.shared_hidden, experts.shared_gate) == (512, True)


def test_experts_are_split_like_the_rest_unless_told() -> None:
    moe = f"{SMALL_MEGATRON} --num-experts 4 --moe-grouped-gemm --tensor-model-parallel-size 2"
    assert read(moe).options["etp"] == 2
    assert read(f"{moe} --expert-tensor-parallel-size 1 --expert-model-parallel-size 4").options["etp"] == 1
    assert read(f"{moe} --moe-expert-capacity-factor 1.25").options["moe_capacity"] == 1.25
    assert read(moe.replace("--moe-grouped-gemm", "")).software["grouped_products"] == "sequential"


def test_windows_and_norms_of_queries() -> None:
    rotary = "--position-embedding-type rope --rotary-percent 0.5"
    words = f"--window-size 127,0 --window-attn-skip-freq 4 --qk-layernorm {rotary}"
    blocks = blocks_of(read(f"{SMALL_MEGATRON} {words}"))
    assert [block.self_attention.window for block in blocks] == [128, 128, 128, None] * 2
    assert {(block.self_attention.query_key_norm, block.self_attention.rotary_dim) for block in blocks} == {
        ("head", 32)
    }


def test_the_users_model_must_have_the_sizes_that_the_arguments_state() -> None:
    found = read(f"{LLAMA} --vocab-size 128256", model="llama3-8b")
    assert (found.model.reference, found.model.config) == ("llama3-8b", None)
    assert read(PARALLEL, model="gpt3-175b").options["micro_batch"] == 1
    for words, message in (
        ("--hidden-size 4096", "--hidden-size: found 4096, expected 12288, as gpt3-175b has"),
        ("--num-layers 12", "--num-layers: found 12, expected 96, as gpt3-175b has"),
        ("--num-attention-heads 8", "--num-attention-heads: found 8, expected 96"),
        ("--num-experts 8", "--num-experts: found 8, expected 0"),
        ("--vocab-size 1000", "--vocab-size: found 1000, expected 50257"),
    ):
        with pytest.raises(InputError, match=message):
            read(f"{PARALLEL} {words}", model="gpt3-175b")
    with pytest.raises(InputError, match="--moe-ffn-hidden-size: found 8, expected 14336"):
        read(f"{PARALLEL} --moe-ffn-hidden-size 8", model="mixtral-8x7b")


def test_a_model_without_a_name_can_be_found_again(tmp_path: Path) -> None:
    for number, words in enumerate(
        (
            "",
            "--swiglu --position-embedding-type none --untie-embeddings-and-output-weights",
            "--num-experts 4 --moe-layer-freq 2 --squared-relu --window-size 63,0 --window-attn-skip-freq 2",
            "--multi-latent-attention --q-lora-rank 64 --kv-lora-rank 32 --position-embedding-type rope --swiglu",
        )
    ):
        output = tmp_path / f"{number}.json"
        result = estimate("megatron", f"{SMALL_MEGATRON} {words}", output=output)
        reference = result["plan"]["model"]["reference"]
        assert reference == str(tmp_path / f"{number}-model.json")
        found = load_file_model(reference)
        expected = blocks_of(read(f"{SMALL_MEGATRON} {words}"))
        assert [layer for layer in found.layers if isinstance(layer, TransformerBlock)] == expected


# The pipeline


@pytest.mark.parametrize(
    ("words", "blocks"),
    [
        ("--pipeline-model-parallel-size 4", (2, 2, 2, 2)),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1", (1,) * 8),
        ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3", (3, 5)),
        ("--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 2", (2, 2, 2, 2)),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*3|ttt|t|tL'", (3, 3, 1, 1)),
        (
            "--pipeline-model-parallel-size 5 --account-for-embedding-in-pipeline-split"
            " --account-for-loss-in-pipeline-split",
            (1, 2, 2, 2, 1),
        ),
    ],
)
def test_blocks_are_divided_as_the_arguments_say(words: str, blocks: tuple[int, ...]) -> None:
    assert read(f"{SMALL_MEGATRON} {words}").blocks == blocks


def test_the_plan_has_the_divided_blocks() -> None:
    words = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*3|ttt|t|tL'"
    plan = estimate("megatron", f"{SMALL_MEGATRON} {words}")["plan"]
    assert [stage["chunks"] for stage in plan["stages"]] == [[[0, 4], [7, 8]], [[4, 7], [8, 10]]]


def test_blocks_of_chunks() -> None:
    assert even_blocks(8, pp=4, vpp=1) == (2, 2, 2, 2)
    assert even_blocks(9, pp=4, vpp=1) is None
    assert uneven_blocks(10, pp=4, vpp=1, first=2, last=2) == (2, 3, 3, 2)
    assert uneven_blocks(10, pp=2, vpp=1, first=4, last=4) is None
    assert uneven_blocks(12, pp=2, vpp=2, first=4, last=None) == (2, 4, 2, 4)
    assert layout_blocks("Et|x") is None
    assert layout_blocks("(t|)*9999") is None
    setup = setup_of("gpt-tiny", pp=2, global_batch=16)
    assert [stage.chunks for stage in with_blocks(setup, (1, 3)).stages] == [((0, 2),), ((2, 6),)]
    with pytest.raises(ValueError, match="with_blocks"):
        with_blocks(setup, (1, 1))


# Wrong input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--tensor-model-parallel-size", "--tensor-model-parallel-size: found no value, expected a value after it"),
        ("--tensor-model-parallel-size two", "--tensor-model-parallel-size: found 'two', expected a whole number"),
        (
            "--tensor-model-parallel-size $TP",
            "--tensor-model-parallel-size: found $TP, expected a value: TP is not assigned",
        ),
        ("--bf16 ${EXTRA[@]}", "megatron: found ${EXTRA[@]}, expected arguments: EXTRA is not assigned"),
        ("--hidden-size 500", "--num-attention-heads: found 8, expected a divisor of --hidden-size 500"),
        ("--group-query-attention --num-query-groups 3", "--num-query-groups: found 3, expected a divisor of"),
        ("--normalization L2", "--normalization: found 'L2', expected one of LayerNorm, RMSNorm"),
        ("--moe-router-topk 3 --num-experts 2", "--moe-router-topk: found 3, expected at most --num-experts 2"),
        ("--num-experts 4 --moe-layer-freq [1]*3", "--moe-layer-freq: found '[1]*3', expected a number, or a list"),
        ("--expert-model-parallel-size 2", "--expert-model-parallel-size: found 2, expected none: "),
        ("--pipeline-model-parallel-size 3", "found 8 layers over 3 stages of 1 chunks, expected layers that divide"),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", "found 3, of 8 layers over 2"),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|tL'",
            "found 2 blocks, expected the model's 8",
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'E|?'",
            "expected chunks of t with | between",
        ),
        ("--fp16", "--bf16, --fp16: found both, expected one of them"),
        ("--perform-rl-step", "--perform-rl-step: found reinforcement learning, expected a decoder"),
        (
            "--model-parallel-size 4",
            "found an argument that Megatron no longer has, expected --tensor-model-parallel-size",
        ),
        ("--micro-batch-size 0", "--micro-batch-size: found '0', expected a whole number of at least 1"),
    ],
)
def test_wrong_arguments_are_refused_by_name(words: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(f"{SMALL_MEGATRON} {words}")
    assert message in str(caught.value)


def test_what_describes_no_model_is_refused() -> None:
    with pytest.raises(
        InputError, match="found no size of a model, expected --num-layers and the other sizes, or MODEL"
    ):
        read(PARALLEL)
    with pytest.raises(InputError, match=r"found pretrain_t5\.py, whose model is not known"):
        read(f"python pretrain_t5.py {SMALL_MEGATRON}")
    with pytest.raises(InputError, match=r"found 'no-such-file\.sh', neither a file nor arguments"):
        read("no-such-file.sh")
    with pytest.raises(InputError, match="no-such-file"):
        read("@no-such-file.sh")


def test_degrees_that_do_not_go_together_are_told_in_megatrons_words() -> None:
    for words, message in (
        ("--tensor-model-parallel-size 3", "found tp * pp * cp = 3 on 8 devices"),
        ("--tensor-model-parallel-size 16 --pipeline-model-parallel-size 1", "= 16 on 8 devices"),
        ("--num-attention-heads 4 --tensor-model-parallel-size 8", "found attention: tp=8 does not divide 4 heads"),
        ("--global-batch-size 12", "--global-batch-size: found 12, with dp = 8"),
    ):
        with pytest.raises(InputError) as caught:
            estimate("megatron", f"{SMALL_MEGATRON} {words}")
        assert message in str(caught.value)
        assert str(caught.value).startswith("megatron: --")
        assert "--tp" not in str(caught.value)


def test_the_launchers_world_is_the_devices() -> None:
    for launcher, devices in (
        ("torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py", 16),
        ("torchrun --nproc-per-node=4 pretrain_gpt.py", 4),
        ("python -m torch.distributed.launch --nproc_per_node 8 --nnodes 4 --node_rank 0 pretrain_gpt.py", 32),
        ("srun -N 3 --ntasks-per-node 8 python -u pretrain_gpt.py", 24),
        ("torchrun --nproc_per_node 8 --nnodes $NODES pretrain_gpt.py", None),
        ("python pretrain_gpt.py", None),
        ("--nnodes 2 --nproc_per_node 8", 16),
        ("", None),
    ):
        assert read_arguments(f"{launcher} {SMALL_MEGATRON}".split(), setting="x").devices == devices
    text = f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {SMALL_MEGATRON} --tensor-model-parallel-size 8"
    result = estimate("megatron", text, "h100:4x8")
    assert len(result["plan"]["devices"]) == 16
    with pytest.raises(InputError, match="the launcher's nodes and ranks: found 16, expected from 1 to the 8 free"):
        estimate("megatron", text, "h100:1x8")
    with pytest.raises(InputError, match="tp \\* pp \\* cp = 128 on 16 devices"):
        estimate("megatron", f"{text} --pipeline-model-parallel-size 8 --context-parallel-size 2", "h100:4x8")
    assert len(estimate("megatron", text, "h100:4x8", devices=32)["plan"]["devices"]) == 32


def test_copies_of_the_optimizer_make_hsdp() -> None:
    words = "--use-distributed-optimizer --num-distributed-optimizer-instances 2"
    stage = estimate("megatron", f"{SMALL_MEGATRON} {words}")["plan"]["stages"][0]
    assert stage["sharding"] == {"zero": 1, "shard": 4, "replicate": 2}
    with pytest.raises(InputError, match="--num-distributed-optimizer-instances: found 3, of 8 data-parallel ranks"):
        estimate("megatron", f"{SMALL_MEGATRON} {words.replace('2', '3')}")


def test_a_script_is_read_as_its_command_is(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    words = SMALL_MEGATRON.replace(" --", " \\\n    --")
    script.write_text(
        f"#!/bin/bash\nTP=2\nARGS=(\n{words}\n)\ntorchrun --nproc_per_node 8 pretrain_gpt.py ${{ARGS[@]}}"
        " --tensor-model-parallel-size $TP --data-path $1\n",
        encoding="utf-8",
    )
    direct = estimate("megatron", f"{SMALL_MEGATRON} --tensor-model-parallel-size 2")
    for settings in (f"@{script}", str(script)):
        found = estimate("megatron", settings)
        assert found["launcher"] == {"format": "megatron", "setting": str(script)}
        assert found["plan"] == direct["plan"]
