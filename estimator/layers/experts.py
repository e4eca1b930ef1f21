"""A rank's work in a mixture-of-experts feed-forward, as Megatron Core runs it with the all-to-all dispatcher.

Router, top-k, permutation by expert, all-to-all over the ep ranks, one grouped product for the rank's experts, and the
way back. Facts from Megatron Core 0.14 (`transformer/moe`: router, token_dispatcher, experts, shared_experts) with
Transformer Engine's grouped linear and fused permutation: a token's probability is applied inside the experts'
activation, so neither the experts' results nor the permuted copies are kept for backward.
"""

from __future__ import annotations

from math import ceil

from estimator.layers.experts_capacity import capacity_experts_piece
from estimator.layers.kind import Branch, BranchKind, Place
from estimator.layers.operators import gemm, grouped_gemm
from estimator.layers.parts import Piece, enter, held, join, leave, linear, memory_pass, refuse_sizes
from estimator.layers.split import Split
from models_zoo.layers import Experts, FeedForward, TransformerBlock
from profiles.records import dataclass, replace
from profiles.vocabulary import Axis, Collective, CollectiveOp, Infeasible, Operator, Phase

ROUTING_BYTES = 4
"""Scores and probabilities are fp32, as are the probabilities that travel with the tokens."""


def _branch(block: TransformerBlock, spec: Experts, split: Split, place: Place) -> Branch:
    """Megatron's experts dispatch from the sequence-parallel slice and have no tensor-parallel edges."""
    if split.zoo:
        return Branch(piece=capacity_experts_piece(split, spec, block.hidden, keeps_input=not place.shared_input))
    return Branch(piece=experts_piece(split, spec, block.hidden), enters=False, leaves=False)


def _refuse(spec: Experts, split: Split, _place: Place) -> Infeasible | None:
    axis, degree = ("tp", split.tp) if split.zoo else ("ep", split.ep)
    return refuse_sizes(
        "experts",
        ("experts", spec.count, axis, degree),
        ("columns of an expert", spec.expert.hidden, "etp", split.etp),
        ("columns of the shared expert", spec.shared_hidden, "tp", split.tp),
    )


EXPERTS = BranchKind(refuse=_refuse, branch=_branch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRows:
    """Token copies of one micro-batch. `tokens` this rank routes, `sent` copies it hands to the dispatch, `per_expert`
    those each of its `groups` experts computes (on the fullest rank), with every etp rank's tokens gathered."""

    tokens: int
    sent: int
    groups: int
    per_expert: int

    @property
    def computed(self) -> int:
        """Copies that the rank's experts compute together."""
        return self.groups * self.per_expert


def expert_rows(split: Split, spec: Experts) -> ExpertRows:
    """Return how many token copies a rank routes, sends and computes.

    Dropless: the rank's tokens times top_k, spread evenly over the experts but for `imbalance` on the fullest rank.
    With a capacity factor every expert takes ceil(factor * top_k * tokens / count) of each rank's tokens, padded to
    that. Without sequence parallelism each tp rank routes its 1/tp of the tokens (what it does not, others do).
    """
    tokens = split.local_rows if split.sequence_parallel else ceil(split.rows / split.tp)
    groups = spec.count // split.ep
    if split.capacity_factor is not None:
        capacity = ceil(split.capacity_factor * spec.top_k * tokens / spec.count)
        return ExpertRows(
            tokens=tokens, sent=capacity * spec.count, groups=groups, per_expert=capacity * split.ep * split.etp
        )
    sent = tokens * spec.top_k
    mean = sent * split.ep * split.etp / spec.count
    return ExpertRows(tokens=tokens, sent=sent, groups=groups, per_expert=max(1, ceil(mean * split.imbalance)))


def experts_piece(split: Split, spec: Experts, hidden: int) -> Piece:
    """Return the whole feed-forward with its shared expert, without the norm before it and the residual after it.

    `expert_parameters` are the rank's: count / ep experts, their inner dimension split by etp. The router and the
    shared expert count as `parameters`. Sizes must divide (count by ep, the inner dimension by etp).
    """
    rows = expert_rows(split, spec)
    width, routed = split.width, spec.latent or hidden
    received = rows.computed // split.etp
    gathered = split.tp > 1 and not split.sequence_parallel
    pieces = [
        _router(split, spec, hidden, rows),
        _latent("experts.latent_down", split, spec, n=routed, k=hidden),
        _to_experts("experts.permute", rows, routed, split),
        _dispatch(split, rows, routed, spec.count),
        _sorted("experts.sort", split, spec, rows, routed),
        _products(split, spec.expert, routed, rows),
        _sorted("experts.unsort", split, spec, rows, routed),
        _combine(split, rows, routed),
        _to_experts("experts.unpermute", rows, routed, split),
        _latent("experts.latent_up", split, spec, n=hidden, k=routed),
        _shared(split, spec, hidden),
    ]
    if gathered:
        size = split.rows * hidden * width
        pieces.append(_talk("tokens", "all_gather", "tp", split.tp, forward=size, backward=size, turned="all_gather"))
    # Forward, on top of what is kept: permuted tokens on their way out and as they come in.
    return join((*pieces, Piece(temporary_bytes=(rows.sent + received) * routed * width)))


def _router(split: Split, spec: Experts, hidden: int, rows: ExpertRows) -> Piece:
    """The router's product, and from its scores the choice: softmax or sigmoid, top-k, maps of who goes where.

    Kept: the input, three fp32 values and a flag for each token and expert (scores, probabilities and their dense
    copy), and Transformer Engine's int32 map of 2 count + 1 entries a token.
    """
    product = gemm(
        "experts.router", m=rows.tokens, n=spec.count, k=hidden, width=split.width, input_grad=split.passes_gradient
    )
    scores = rows.tokens * spec.count
    maps = 4 * rows.tokens * (2 * spec.count + 1)
    kept = scores * (3 * ROUTING_BYTES + 1) + maps
    choice = Operator(
        name="experts.routing",
        kind="memory",
        shape=(scores,),
        forward_bytes=8 * ROUTING_BYTES * scores + 2 * maps,
        backward_bytes=6 * ROUTING_BYTES * scores,
        saved_bytes=kept,
        forward_kernels=14,
        backward_kernels=8,
    )
    routed = Piece(
        operators=(product, choice),
        adapter_parameters=split.lora_rank * (hidden + spec.count),
        saved_bytes=rows.tokens * hidden * split.width + kept,
    )
    # Each tensor-parallel rank routes its part of the tokens.
    return join((routed, held(hidden * spec.count, split.tp)))


def _latent(name: str, split: Split, spec: Experts, *, n: int, k: int) -> Piece:
    """A projection to or from the width that the routed experts work on; every tp rank projects its own tokens."""
    if not spec.latent:
        return Piece()
    saves = name.endswith("up")
    rows = expert_rows(split, spec).tokens
    return linear(name, rows=rows, n=n, k=k, split=split, saves_input=saves, gradient_ranks=split.tp)


def _moved(name: str, *, read: int, written: int, hidden: int, split: Split) -> Piece:
    """Rows copied or summed by a map, in one kernel each way."""
    moved = (read + written) * hidden * split.width
    operator = Operator(name=name, kind="gather", shape=(written, hidden), forward_bytes=moved, backward_bytes=moved)
    return Piece(operators=(operator,))


def _to_experts(name: str, rows: ExpertRows, hidden: int, split: Split) -> Piece:
    """A rank's tokens copied for each of their experts before they are sent, or the copies' results summed; a
    dispatcher that sends a token once takes it as it is and sums on the way."""
    if split.sends_once and split.ep > 1:
        return Piece()
    return _moved(name, read=rows.tokens, written=rows.sent, hidden=hidden, split=split)


def _sorted(name: str, split: Split, spec: Experts, rows: ExpertRows, hidden: int) -> Piece:
    """Received chunks (by sender, then expert) put in the experts' order, or back; nothing with one expert a rank.

    Where a token came once for all experts of the rank, it is copied for each of them here, or their results summed.
    """
    if split.sends_once and split.ep > 1:
        reached = split.ep * (1 - (1 - 1 / split.ep) ** spec.top_k)
        arrived = round(rows.computed * reached / spec.top_k)
        return _moved(name, read=arrived, written=rows.computed, hidden=hidden, split=split)
    if rows.groups == 1:
        return Piece()
    return _moved(name, read=rows.computed, written=rows.computed, hidden=hidden, split=split)


def _talk(
    name: str, op: CollectiveOp, axis: Axis, ranks: int, *, forward: int, backward: int, turned: CollectiveOp
) -> Piece:
    """A collective forward and its transpose backward; nothing among one rank."""
    if ranks == 1:
        return Piece()

    def phased(op: CollectiveOp, size: int, phase: Phase) -> Collective:
        return Collective(op=op, bytes=size, phase=phase, axis=axis, ranks=ranks, name=f"experts.{name}")

    return Piece(collectives=(phased(op, forward, "forward"), phased(turned, backward, "backward")))


def _dispatch(split: Split, rows: ExpertRows, hidden: int, count: int) -> Piece:
    """Tokens and their probabilities to the ranks of their experts, then gathered over etp.

    The fullest rank's bytes: what it receives where routing is uneven. Dropless routing first tells everybody how many
    tokens come. Between etp ranks (neighbours, as tp ranks are) the collective is on the tp axis.
    """
    sent = rows.computed // split.etp * hidden * split.width
    probabilities = rows.computed // split.etp * ROUTING_BYTES
    pieces = [
        _talk("dispatch", "all_to_all", "ep", split.ep, forward=sent, backward=sent, turned="all_to_all"),
        _talk(
            "probabilities",
            "all_to_all",
            "ep",
            split.ep,
            forward=probabilities,
            backward=probabilities,
            turned="all_to_all",
        ),
        _gather_over_etp("dispatch", split, rows, hidden, "all_gather", "reduce_scatter"),
    ]
    if split.capacity_factor is None and split.ep > 1:
        counts = Collective(
            op="all_gather",
            bytes=8 * count * split.ep,
            phase="forward",
            axis="ep",
            ranks=split.ep,
            name="experts.counts",
        )
        pieces.append(Piece(collectives=(counts,)))
    return join(pieces)


def _combine(split: Split, rows: ExpertRows, hidden: int) -> Piece:
    """Results added up over etp and sent back to the tokens' own ranks."""
    sent = rows.computed // split.etp * hidden * split.width
    return join(
        (
            _gather_over_etp("combine", split, rows, hidden, "reduce_scatter", "all_gather"),
            _talk("combine", "all_to_all", "ep", split.ep, forward=sent, backward=sent, turned="all_to_all"),
        )
    )


def _gather_over_etp(
    name: str, split: Split, rows: ExpertRows, hidden: int, op: CollectiveOp, turned: CollectiveOp
) -> Piece:
    size = rows.computed * hidden * split.width
    return _talk(f"{name}.etp", op, "etp", split.etp, forward=size, backward=size, turned=turned)


def _products(split: Split, spec: FeedForward, hidden: int, rows: ExpertRows) -> Piece:
    """Two grouped products (gate and up are one) around the activation, which also weighs by probability.

    Besides its input the activation keeps its nonlinearity's and its unweighed result, unless it is fused with the
    weighing: the peaks of SMXB-0007, -0015 and -0022 hold two more tensors of the experts' inner width.
    Fused into the products it writes its result, and reads and writes its gradients, as it goes, cast where products
    are narrow (Transformer Engine's pull requests 2622 and 2769: two launches forward, four backward).
    """
    width, groups, m = split.width, rows.groups, rows.per_expert
    inner = spec.hidden // split.etp
    columns = inner * (2 if spec.gated else 1)
    up = grouped_gemm("experts.up", groups=groups, m=m, n=columns, k=hidden, width=width, bias=spec.bias)
    down = grouped_gemm("experts.down", groups=groups, m=m, n=hidden, k=inner, width=width, bias=spec.bias)
    kept = _kept_share(split)
    up, down = (replace(each, saved_bytes=round(each.saved_bytes * kept)) for each in (up, down))
    inputs = 2 if spec.gated else 1
    # Biased gates are GPT-OSS's, whose halves are clamped apart and put together first (Megatron Core,
    # fusions/fused_bias_geglu.py): 4 passes of both, backward 5.
    clamped = inputs if spec.bias and spec.gated and not split.fused_experts else 0
    if split.fused_experts:
        up, down = replace(up, narrow_gradient=True), replace(down, narrow_input=True)
    results = 0 if split.weighs_inside else inputs
    weighing = memory_pass(
        "experts.activation",
        rows.computed * inner,
        split,
        forward=1.0 if split.fused_experts else inputs + 1.0 + 4.0 * clamped,
        backward=2.0 * inputs if split.fused_experts else 2.0 * inputs + 1.0 + 5.0 * clamped,
        forward_kernels=4 if clamped else 1,
        backward_kernels=4 if clamped else 1,
        extra_bytes=ROUTING_BYTES * rows.computed,
        saved_bytes=rows.computed * ((columns + (results + clamped) * inner) * width + ROUTING_BYTES),
    )
    weights = columns * (hidden + int(spec.bias)) + hidden * (inner + int(spec.bias))
    kept = up.saved_bytes + down.saved_bytes
    beside = [weighing, _added_bias(split, spec, hidden, rows)]
    if split.stashes_experts:
        beside.append(_stash(kept + weighing.saved_bytes))
    products = Piece(
        operators=(up, down),
        expert_parameters=groups * weights,
        adapter_parameters=split.lora_rank * groups * (2 * hidden + columns + inner),
        saved_bytes=kept,
    )
    return join((products, *beside))


def _added_bias(split: Split, spec: FeedForward, hidden: int, rows: ExpertRows) -> Piece:
    """What the last product's bias takes beside it: each expert's results plus its bias weighed by each token's
    probability, in fp32, then all of them side by side again (Megatron Core, `TEGroupedMLP._apply_bias`). The first
    product adds its own."""
    if not spec.bias or split.fused_experts:
        return Piece()
    elements = rows.computed * hidden
    # A product of bias and probability (4 written), a sum (2 + 4 read, 4 written), the whole (8), its cast (4 + 2).
    added = Operator(
        name="experts.bias",
        kind="memory",
        shape=(elements,),
        forward_bytes=28 * elements,
        # Casts back (6 + 6), and for bias and probabilities products with the gradient and their sums (20).
        backward_bytes=32 * elements,
        forward_kernels=2 * rows.groups + 2,
        backward_kernels=5 * rows.groups + 2,
    )
    return Piece(operators=(added,))


def _stash(kept: int) -> Piece:
    """What the experts keep, copied out of buffers that hold the most tokens that may come into pages, and back before
    backward (Megatron Core's paged stashing, pull request 4247): so graphs of fixed shapes need not hold all of it."""
    copies = Operator(
        name="experts.stash", kind="memory", shape=(kept,), forward_bytes=2 * kept, backward_bytes=2 * kept
    )
    return Piece(operators=(copies,))


def _kept_share(split: Split) -> float:
    """The share of its input in 16 bits that an expert's product keeps: its narrow copy, or nothing where frozen."""
    if split.lora_rank:
        return 1.0
    return 0.0 if split.frozen else split.kept_width / split.width


def _shared(split: Split, spec: Experts, hidden: int) -> Piece:
    """The expert that every token visits: dense, split by tp; its input is the one that the router keeps."""
    if not spec.shared_hidden:
        return Piece()
    inner = spec.shared_hidden // split.tp
    columns = inner * (2 if spec.expert.gated else 1)
    pieces = [
        enter("experts.shared.enter", hidden, split),
        linear("experts.shared.up", rows=split.rows, n=columns, k=hidden, split=split, saves_input=False),
        memory_pass(
            "experts.shared.activation",
            split.rows * inner,
            split,
            forward=columns / inner + 1.0,
            backward=2.0 * columns / inner + 1.0,
            saved_bytes=split.rows * columns * split.width,
        ),
        linear("experts.shared.down", rows=split.rows, n=hidden, k=inner, split=split),
        leave("experts.shared.leave", hidden, split),
        memory_pass("experts.shared.sum", split.local_rows * hidden, split, forward=3.0, backward=0.0),
    ]
    if spec.shared_gate:
        gate = linear(
            "experts.shared.gate",
            rows=split.local_rows,
            n=1,
            k=hidden,
            split=split,
            saves_input=False,
            gradient_ranks=split.outside_ranks,
        )
        scaled = memory_pass(
            "experts.shared.gating",
            split.local_rows * hidden,
            split,
            forward=2.0,
            backward=5.0,
            saved_bytes=split.local_rows * (hidden + 1) * split.width,
            forward_kernels=2,
            backward_kernels=4,
        )
        pieces += [gate, scaled]
    return join(pieces)
