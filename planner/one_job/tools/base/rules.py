"""Rules that several tools have: what they ask stands here, in what words they say it in their own records."""

from __future__ import annotations

from planner.one_job.tools.base.tool import Rule

UNSHARED_EXPERTS_SPLIT_AS_ALL = Rule(
    key="stages[].etp",
    allows=lambda s: (s.ep > 1) | (s.etp == s.tp) | (s.job.experts is None),
    expected="tp = {s.tp} where experts are not shared",
)
"""Experts are split as all matrices are unless expert parallelism shares them."""

STATE_SHARDED_OVER_CP = Rule(
    key="stages[].sharding.shard",
    allows=lambda s: s.zero == 0 or s.shard % s.cp == 0,
    expected="a multiple of cp = {s.cp}, over which it shards too",
)
"""FSDP shards weights over the ranks of context parallelism too."""

ALL_LAYERS_RECOMPUTED = Rule(
    key="stages[].recompute.layers",
    allows=lambda s: s.recompute == "none" or s.recomputes_all_blocks,
    found="{s.recompute_layers} layers by stage",
    expected="all layers or none",
)
"""There is one switch for all layers."""


def experts_split_as_all(expected: str) -> Rule:
    """Return the rule that experts are split as all matrices are."""
    return Rule(key="stages[].etp", allows=lambda s: (s.etp == s.tp) | (s.job.experts is None), expected=expected)


def shared_experts_whole(expected: str) -> Rule:
    """Return the rule that experts which ranks share are split no further."""
    return Rule(key="stages[].etp", allows=lambda s: (s.ep == 1) | (s.etp == 1), expected=expected)


def tokens_whole(expected: str) -> Rule:
    """Return the rule that tensor-parallel ranks do not share the tokens."""
    return Rule(
        key="stages[].sequence_parallel",
        allows=lambda s: (s.tp == 1) | (s.sequence_parallel < 1),
        found="True",
        expected=expected,
    )


def sharded_state_offloaded_whole(least_zero: int, expected: str) -> Rule:
    """Return the rule that weights and optimizer state are held in host memory together, under ZeRO `least_zero`."""
    return Rule(
        key="stages[].offload",
        allows=lambda s: not s.offload or (set(s.offload) == {"weights", "optimizer"} and s.zero >= least_zero),
        found="{s.offload} with ZeRO {s.zero}",
        expected=expected,
    )
