"""The torch shards do what the whole layer does: ranks as threads give its outputs and gradients; models train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models_zoo.layers import Embedding, FeedForward, Head, Layer
from models_zoo.model import Model, TokenInput
from models_zoo.parameters import whole_name
from models_zoo.torch_layers.build import build_layer, build_model, example_inputs
from models_zoo.torch_layers.parallel import SEQUENCE_DIM, Neutral
from profiles.vocabulary import Phase, Shard
from tests.recording_ranks import sum_partial_gradients
from tests.transformer_variants import BLOCKS, EXPERTS, GPT, HIDDEN, LAYERS, LLAMA, SEQ_LEN, shard


@dataclass
class Meeting:
    """Where the threads of one group exchange tensors."""

    degree: int
    tensors: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tensors = [None] * self.degree
        self.barrier = Barrier(self.degree, timeout=120)

    def exchange(self, rank: int, x: Tensor) -> list[Tensor]:
        self.tensors[rank] = x.detach().clone()
        self.barrier.wait()
        everything = list(self.tensors)
        self.barrier.wait()
        return everything


@dataclass(frozen=True)
class Threaded:
    """A rank that really talks to the others: a tensor-parallel group of threads."""

    rank: int
    meeting: Meeting

    @property
    def degree(self) -> int:
        return self.meeting.degree

    def all_reduce(self, x: Tensor, phase: Phase, ranks: int | None = None) -> Tensor:
        del phase
        size = ranks or self.degree
        first = self.rank // size * size
        return torch.stack(self.meeting.exchange(self.rank, x)[first : first + size]).sum(0)

    def maximum(self, x: Tensor, phase: Phase) -> Tensor:
        del phase
        return torch.stack(self.meeting.exchange(self.rank, x)).amax(0)

    def all_gather(self, x: Tensor, dim: int, phase: Phase) -> Tensor:
        del phase
        return torch.cat(self.meeting.exchange(self.rank, x), dim)

    def reduce_scatter(self, x: Tensor, dim: int, phase: Phase) -> Tensor:
        return self.all_reduce(x, phase).chunk(self.degree, dim)[self.rank]


def in_threads(degree: int, work: Callable[[Threaded], Any]) -> list[Any]:
    """`work` of each rank's thread, in rank order; the first rank's error that is not just a broken barrier."""
    meeting = Meeting(degree)
    results: list[Any] = [None] * degree
    errors: list[Exception] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(Threaded(rank, meeting))
        except Exception as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [Thread(target=run, args=(rank,)) for rank in range(degree)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def slice_for(rank: int, degree: int, whole: Tensor, local: Tensor) -> Tensor:
    """The rank's part of `whole` in `local`'s shape; with fewer parts than ranks, consecutive ranks have the same."""
    for dim, (total, own) in enumerate(zip(whole.shape, local.shape, strict=True)):
        if total != own:
            parts = total // own
            return whole.chunk(parts, dim)[rank * parts // degree]
    return whole


def sequence_slice(x: Tensor, rank: int, local: Shard) -> Tensor:
    return x.chunk(local.tp, SEQUENCE_DIM)[rank] if local.sequence_parallel else x


def run(module: nn.Module, inputs: list[Tensor], gradient: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    out = module(*inputs)
    out.backward(gradient)
    return out.detach(), [x.grad for x in inputs if x.requires_grad]


def assert_equals_the_whole(layer: Layer, local: Shard) -> None:
    """Outputs, input gradients and, once partial ones are summed, parameter gradients of every rank."""
    generator = torch.Generator().manual_seed(1)
    alone = replace(local, tp=1, sequence_parallel=False)
    whole = build_layer(layer, alone, Neutral()).eval()
    for p in whole.parameters():
        p.data.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    inputs = list(example_inputs(layer, alone, "cpu", generator))
    gradient = None if isinstance(layer, Head) else torch.randn(3, SEQ_LEN, HIDDEN, generator=generator)
    out, input_grads = run(whole, inputs, gradient)
    weights = dict(whole.named_parameters())

    def one_rank(tp: Threaded) -> None:
        module = build_layer(layer, local, tp).eval()
        for name, p in module.named_parameters():
            p.data.copy_(slice_for(tp.rank, tp.degree, weights[whole_name(name)].data, p))
        own = [
            sequence_slice(x.detach(), tp.rank, local).clone().requires_grad_() if x.requires_grad else x
            for x in inputs
        ]
        own_gradient = None if gradient is None else sequence_slice(gradient, tp.rank, local)
        found, found_grads = run(module, own, own_gradient)
        assert_close(found, out if gradient is None else sequence_slice(out, tp.rank, local), "output")
        for number, (mine, all_of_it) in enumerate(zip(found_grads, input_grads, strict=True)):
            assert_close(mine, sequence_slice(all_of_it, tp.rank, local), f"gradient of input {number}")
        sum_partial_gradients(module, tp)
        for name, p in module.named_parameters():
            gradient_part = slice_for(tp.rank, tp.degree, weights[whole_name(name)].grad, p)
            assert_close(p.grad, gradient_part, f"gradient of {name}")

    in_threads(local.tp, one_rank)


def assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * scale + 4e-6, msg=lambda m: f"{what}: {m}")


@pytest.mark.parametrize(("tp", "sequence_parallel"), [(2, False), (2, True), (4, True)])
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "block_full_norm"])
def test_ranks_together_are_the_whole_layer(name: str, tp: int, sequence_parallel: bool) -> None:
    layer = LAYERS[name]
    if isinstance(layer, Embedding | Head) and layer.vocab:
        layer = replace(layer, vocab=48)  # without padding, which would take part in the loss
    assert_equals_the_whole(layer, shard(tp, sequence_parallel))


@pytest.mark.parametrize("name", ["gpt", "llama", "mla", "decoder_pre"])
def test_plain_attention_equals_the_fused(name: str) -> None:
    fused, plain = (
        build_layer(BLOCKS[name], replace(shard(1, False), attention=kernel), Neutral()) for kernel in ("flash", "math")
    )
    plain.load_state_dict(fused.state_dict())
    inputs = example_inputs(BLOCKS[name], shard(1, False), "cpu", torch.Generator().manual_seed(0))
    torch.testing.assert_close(plain(*inputs), fused(*inputs))


def test_experts_compute_what_each_token_chose() -> None:
    """With room for everybody, against a loop over tokens and their experts."""
    spec = replace(
        EXPERTS, capacity_factor=EXPERTS.count / EXPERTS.top_k, expert=FeedForward(hidden=24, activation="relu")
    )
    moe = build_layer(replace(GPT, feed_forward=spec), shard(1, False), Neutral()).mlp.body
    x = torch.randn(3, SEQ_LEN, HIDDEN, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros_like(x)
    for place in torch.cartesian_prod(torch.arange(3), torch.arange(SEQ_LEN)).tolist():
        token = x[tuple(place)]
        probabilities = moe.router(token).softmax(-1)
        for expert in probabilities.topk(spec.top_k).indices:
            inner = (token @ moe.experts.up[expert]).relu()
            expected[tuple(place)] += probabilities[expert] * (inner @ moe.experts.down[expert])
    torch.testing.assert_close(moe(x), expected)


def test_experts_drop_tokens_beyond_their_capacity() -> None:
    """All 24 tokens are alike and want the same two of four experts, which take ceil(1.25 * 2 * 24 / 4) = 15 each."""
    moe = build_layer(replace(GPT, feed_forward=EXPERTS), shard(1, False), Neutral()).mlp.body
    out = moe(torch.ones(3, SEQ_LEN, HIDDEN)).flatten(0, 1)
    assert out.any(-1).tolist() == [True] * 15 + [False] * 9


_CROSS = replace(GPT.self_attention, causal=False)
_GPT_CHAIN = (Embedding(vocab=40, hidden=HIDDEN, positions=SEQ_LEN), GPT, GPT, Head(hidden=HIDDEN, vocab=40, tied=True))
CHAINS: dict[str, tuple[Layer, ...]] = {
    "gpt": _GPT_CHAIN,
    "bert": (
        Embedding(vocab=40, hidden=HIDDEN, positions=SEQ_LEN, token_types=2, norm="layernorm", dropout=True),
        BLOCKS["bert"],
        Head(hidden=HIDDEN, vocab=40, norm=None, tied=True, bias=True, transform=True, pooler=True),
    ),
    "moe": (
        Embedding(vocab=40, hidden=HIDDEN),
        LLAMA,
        BLOCKS["moe_shared"],
        Head(hidden=HIDDEN, vocab=40, norm="rmsnorm"),
    ),
    "nmt": (
        Embedding(vocab=40, hidden=HIDDEN, positions=SEQ_LEN),
        replace(GPT, attention=_CROSS),
        Embedding(vocab=40, hidden=HIDDEN, positions=SEQ_LEN, tied=True),
        replace(GPT, cross_attention=_CROSS),
        replace(GPT, cross_attention=_CROSS),
        Head(hidden=HIDDEN, vocab=40, tied=True),
    ),
}


def chain(name: str) -> Model:
    layers = CHAINS[name]
    start = 2 if name == "nmt" else None
    names = tuple(str(number) for number in range(len(layers)))
    tokens = TokenInput(seq_len=SEQ_LEN, decoder_start=start)
    return Model(name=name, family=name, layers=layers, layer_names=names, input=tokens)


def chain_inputs(name: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(40, (3, SEQ_LEN), generator=generator) for _ in range(3 if name == "nmt" else 2)]


@pytest.mark.parametrize("name", CHAINS)
def test_a_model_trains(name: str) -> None:
    torch.manual_seed(0)
    model = build_model(chain(name), shard(1, False), Neutral())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        loss = model(*chain_inputs(name))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_a_split_model_has_the_whole_models_loss_and_tied_gradients() -> None:
    whole = build_model(chain("nmt"), shard(1, False), Neutral())
    weights = dict(whole.named_parameters())
    loss = whole(*chain_inputs("nmt"))
    loss.backward()

    def one_rank(tp: Threaded) -> float:
        model = build_model(chain("nmt"), shard(2, True), tp)
        for name, p in model.named_parameters():
            p.data.copy_(slice_for(tp.rank, 2, weights[whole_name(name)].data, p))
        found = model(*chain_inputs("nmt"))
        found.backward()
        sum_partial_gradients(model, tp)
        for name, p in model.named_parameters():
            assert_close(p.grad, slice_for(tp.rank, 2, weights[whole_name(name)].grad, p), name)
        return float(found.detach())

    assert in_threads(2, one_rank) == pytest.approx([float(loss.detach())] * 2, rel=1e-5)


def test_what_cannot_be_built_says_why() -> None:
    with pytest.raises(ValueError, match="2 ranks for a shard with tp=4"):
        build_layer(GPT, Shard(tp=4, seq_len=8), Neutral(2))
    with pytest.raises(ValueError, match="found dtype 'fp8', expected one of fp32, bf16, fp16"):
        build_layer(GPT, Shard(seq_len=8, dtype="fp8"), Neutral())
    with pytest.raises(ValueError, match="parallel residual with placement='post'"):
        build_layer(replace(GPT, parallel=True, placement="post"), Shard(seq_len=8), Neutral())
