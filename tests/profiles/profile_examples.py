"""Keys, measurements and strategies for the tests of profiles and their store."""

from __future__ import annotations

from hypothesis import strategies as st

from models_zoo.layers import Attention, Embedding, FeedForward, TransformerBlock
from profiles.measurements import MOST_RATE, DeviceRates, Measurement, MeasurementKey, Profile, ProfileSet, canonical
from profiles.vocabulary import MOST_S, LinkTable, Shard

BLOCK = TransformerBlock(
    hidden=256,
    attention=Attention(heads=4, kv_heads=4, head_dim=64),
    feed_forward=FeedForward(hidden=1024),
)
KEY = MeasurementKey(
    layers=(canonical(BLOCK),),
    shard=Shard(tp=2, micro_batch_per_rank=4, seq_len=128),
    optimizer="adamw",
    threads=1,
    device="cpu",
    hardware="Some CPU @ 2.0 GHz",
    software="torch 2.13.0+cpu, python 3.11.7",
)
MEASUREMENT = Measurement(
    forward_s=(0.01, 0.011), backward_s=(0.02, 0.021), saved_bytes=100, peak_memory_bytes=300, parameters=7
)

seconds = st.floats(min_value=0, max_value=MOST_S)
times = st.floats(min_value=0, max_value=MOST_S, exclude_min=True)
rates_per_s = st.floats(min_value=1, max_value=MOST_RATE)
counts = st.integers(0, 2**59)
samples = st.lists(seconds, min_size=1, max_size=4).map(tuple)
shards = st.builds(
    Shard,
    tp=st.integers(1, 64),
    sequence_parallel=st.booleans(),
    micro_batch_per_rank=st.integers(1, 64),
    seq_len=counts,
    dtype=st.sampled_from(["fp32", "bf16", "fp16", "fp8"]),
    attention=st.sampled_from(["flash", "math"]),
    recompute=st.sampled_from(["none", "full"]),
)
keys = st.builds(
    MeasurementKey,
    kind=st.just("stage"),
    layers=st.lists(st.builds(Embedding, vocab=counts, hidden=counts).map(canonical), min_size=1, max_size=3).map(
        tuple
    ),
    shard=shards,
    mode=st.sampled_from(["eager", "compiled"]),
    optimizer=st.text(max_size=5),
    threads=st.integers(0, 64),
    device=st.text(max_size=5),
    hardware=st.text(),
    software=st.text(),
)
measurements = st.builds(
    Measurement,
    forward_s=samples,
    backward_s=samples,
    optimizer_s=st.just(()) | samples,
    saved_bytes=counts,
    peak_memory_bytes=counts,
    parameters=counts,
)
profiles = st.builds(Profile, key=keys, measurement=measurements)
rates = st.builds(
    DeviceRates,
    device=st.text(max_size=3),
    hardware=st.text(),
    software=st.text(),
    threads=st.integers(0, 64),
    memory_bytes=st.integers(1, 2**59),
    memory_bandwidth_bytes_per_s=rates_per_s,
    flops_per_s=st.lists(st.tuples(st.sampled_from(["fp32", "bf16"]), rates_per_s), max_size=2).map(tuple),
    flash_attention=st.booleans(),
)
link_tables = st.builds(
    LinkTable,
    link=st.text(max_size=3),
    op=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]),
    ranks=st.integers(2, 9),
    nodes=st.integers(1, 9),
    points=st.dictionaries(st.integers(1, 2**59), times, min_size=1, max_size=3).map(
        lambda points: tuple(sorted(points.items()))
    ),
    alpha_s=seconds,
    beta_s_per_byte=seconds,
    fit_error=seconds,
    source=st.text(),
    provenance=st.sampled_from(["measured", "modelled"]),
    backend=st.sampled_from(["", "gloo", "nccl"]),
    hardware=st.text(max_size=3),
)
profile_sets = st.builds(
    ProfileSet,
    profiles=st.lists(profiles, max_size=3, unique_by=lambda profile: profile.id).map(tuple),
    rates=st.lists(rates, max_size=2, unique_by=lambda found: (found.device, found.hardware, found.threads)).map(tuple),
    link_tables=st.lists(
        link_tables,
        max_size=2,
        unique_by=lambda table: (table.link, table.op, table.ranks, table.nodes, table.backend, table.hardware),
    ).map(tuple),
)
