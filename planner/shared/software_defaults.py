"""What nobody says of a training: what its software does by itself, else what memory forces, never what is slowest.

Both an explicit plan's options and a run table's rows leave these open, and both take them from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd

from estimator.cells.job import default_global_batch
from estimator.pricing.software import Framework
from models_zoo.model import Model
from profiles.vocabulary import RecomputeKind

TOKENS_PER_MICRO_BATCH = 8192
"""Tokens of a micro-batch on a rank that recipes of Megatron, NeMo and Megatron-Bridge settle for: one sample of 8,192
tokens, two or four of fewer."""

MICRO_BATCHES_A_STAGE = 4
"""As Crius and GPipe take it (Crius, section 5.1): fewer leave a pipeline mostly idle."""

FEW_LAYERS = (1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Shares of a stage's layers in which everything is recomputed, tried in turn before all."""

LADDER: tuple[RecomputeKind, ...] = ("none", "selective", "full")
"""What is recomputed, from least to most: the first that fits is taken."""


def usual_global_batch(model: Model, seq_len: int, devices: int, *, fine_tunes: bool = False) -> tuple[int, str]:
    """Return samples of an iteration where a plan's nobody says, and the sentence that says so: the catalogue's, also
    where these are fewer than the `devices` (tp, pp and cp share a sample), unless the job `fine_tunes`; else
    `default_global_batch`."""
    if model.global_batch is None or fine_tunes:
        return default_global_batch(model, seq_len, devices, fine_tunes=fine_tunes)
    return (
        model.global_batch,
        f"global batch {model.global_batch} samples, the catalogue's for {model.name} (--global-batch)",
    )


def default_micro_batch(framework: Framework, *, share: int, pp: int, seq_len: int) -> tuple[int, str]:
    """Return samples of a rank's micro-batch where it has `share` of them an iteration, and a sentence's middle that
    says why.

    Software that accumulates has a micro-batch of its own: the most that divides the share within 8,192 tokens, and
    leaves `pp` stages four micro-batches each, where there are so many samples. Other software takes the whole share at
    a time, and where stages are to be filled one part for each, if that divides it.
    """
    if not framework.accumulates:
        parts = gcd(share, pp)
        return share // parts, "the rank's whole share of the batch" + (f" in {parts} parts" if parts > 1 else "")
    most = max(1, TOKENS_PER_MICRO_BATCH // seq_len) if seq_len else share
    if pp > 1:
        most = min(most, max(1, share // (MICRO_BATCHES_A_STAGE * pp)))
    samples = max((n for n in range(1, most + 1) if share % n == 0), default=1)
    return samples, f"the most that divides the batch within {TOKENS_PER_MICRO_BATCH} tokens"


def default_local_batch(framework: Framework, seq_len: int, ranks_a_sample: int) -> int:
    """Return samples of a replica's batch where nobody says any and the software does not accumulate: its recipe's, or
    about 8,192 tokens for each of the `ranks_a_sample` devices that share a sample, as torchtitan's own configurations
    have."""
    tokens = framework.local_tokens or TOKENS_PER_MICRO_BATCH * ranks_a_sample
    return max(1, tokens // seq_len) if seq_len else 1


def choices_in_turn(
    framework: Framework, sizes: Sequence[int], kinds: Sequence[RecomputeKind], stage_layers: int
) -> tuple[tuple[int, RecomputeKind, int | None], ...]:
    """Return micro-batches, kinds of recomputation and in how many layers of each stage (None: all) in the order in
    which they are tried until one fits.

    `sizes` are largest first, `kinds` least first; a stage has `stage_layers` layers. Software that accumulates takes a
    smaller micro-batch before it computes anything again, and then in as few layers as need be if it can; other
    software recomputes before it takes its share of the batch in parts.
    """
    least, most = kinds[0], kinds[-1]
    if len(kinds) == 1:
        return tuple((samples, least, None) for samples in sizes)
    if not framework.accumulates:
        return (*((sizes[0], kind, None) for kind in kinds), *((samples, most, None) for samples in sizes[1:]))
    few = sorted({ceil(share * stage_layers) for share in FEW_LAYERS} - {stage_layers})
    return (
        *((samples, least, None) for samples in sizes),
        *((sizes[-1], kind, None) for kind in kinds[1:-1]),
        *((sizes[-1], most, layers) for layers in few if framework.recomputes_layers),
        *((samples, most, None) for samples in sizes),
    )


def recompute_ladder(framework: Framework) -> tuple[RecomputeKind, ...]:
    """Return what is recomputed where nobody says: the software's own default, and more where memory forces it."""
    return LADDER[LADDER.index(framework.recompute) :]
