"""What the examples' files of other programs hold: launchers' settings, traces, logs."""

from __future__ import annotations

CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes:
      - {count: 1, device: a100-80gb, devices: 4, island: {link: nvswitch3, size: 4}, nics: {count: 2, link: ib-hdr200}}
      - count: 1
        device: {name: wafer, memory_bytes: 80000000000, memory_bandwidth_bytes_per_s: 1e12, peak_flops_per_s: {bf16: 1e14, fp32: 1e13}}
        devices: 2
        island: {link: {bandwidth_bytes_per_s: 1e11, latency_s: 1e-6}, size: 2}
        nics: {count: 2, link: {name: fast, kind: ethernet, bandwidth_bytes_per_s: 5e10, latency_s: 2e-6, efficiency: 0.9}}
        host_link: pcie5-x16
    fabric: {link: ib-hdr200, oversubscription: 1.0, pods: 1}
  - name: south
    nodes:
      - {count: 1, device: a100-80gb, devices: 4, free: 4, price_per_device_hour: 1.9}
links_between_sites:
  - {between: [north, south], bandwidth_bytes_per_s: 1.25e9, latency_s: 5.0e-3}
"""  # noqa: E501
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
}
MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4"
    " --seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 16"
    " --tensor-model-parallel-size 2 --bf16 --vocab-size 512 --train-iters 10\n"
)
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 2048
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
"""
DEEPSPEED = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 500000000},
    "gradient_accumulation_steps": 2,
}
NCCL = """# nThread 1 nGpus 2 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# all_reduce_perf
#  Rank  0 Group  0 Pid  10 on  host device  0 [0x00] NVIDIA A100
#  Rank  1 Group  0 Pid  10 on  host device  1 [0x01] NVIDIA A100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1     5.00    0.20    0.20      0     5.10    0.20    0.20      0
     1048576        262144     float     sum      -1    50.00   20.97   20.97      0    51.00   20.56   20.56      0
"""
RUNS = """id,model,gpu,gpus,nodes,tp,pp,dp,micro_batch,global_batch,seq_len,iter_time_s,precision,peak_mem_gb
A-1,gpt2-350m,a100-80gb,8,1,1,1,8,4,64,1024,0.5,bf16,20
A-2,gpt2-350m,a100-80gb,8,1,2,1,4,4,64,1024,0.6,bf16,18
"""
FAILURES = "time_s,pool,node,repair_s\n100,a100-80gb,0,3600\n5000,a100-80gb,1,60\n"
PHILLY = [
    {
        "status": "Pass",
        "vc": "v",
        "user": "u",
        "jobid": f"application_{number}",
        "submitted_time": f"2017-10-0{number} 01:00:00",
        "attempts": [
            {
                "start_time": f"2017-10-0{number} 01:01:00",
                "end_time": f"2017-10-0{number} 02:00:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}],
            }
        ],
    }
    for number in (1, 2)
]
HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "1,u,v,1,4,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:10,2020-04-01 01:00:10,3600,10\n"
)
SACCT = (
    "JobID|User|Account|Submit|Start|End|Elapsed|State|AllocTRES|NNodes|AllocCPUS|ReqMem\n"
    "1|u|a|2024-01-01T00:00:00|2024-01-01T00:00:10|2024-01-01T01:00:10|01:00:00|COMPLETED|gres/gpu=1|1|4|4G\n"
)
PAI = "job,worker,1.0,Terminated,100.0,4000.0,600.0,29.0,100.0,V100\n"
QUEUES = "a: {share: 0.5}\nb: {share: 0.5}\n"
MEASURED = [
    {
        "link": "north--south",
        "op": "send_recv",
        "ranks": 2,
        "nodes": 2,
        "points": [[1024, 0.01], [1048576, 0.9]],
        "alpha_s": 0.01,
        "beta_s_per_byte": 8e-7,
        "fit_error": 0.1,
        "source": "fuzz",
    }
]
NANOTRON = """general: {project: debug, run: tiny}
model:
  dtype: bfloat16
  make_vocab_size_divisible_by: 1
  model_config: {hidden_act: silu, hidden_size: 16, intermediate_size: 64, is_llama_config: true, max_position_embeddings: 256,
    num_attention_heads: 4, num_hidden_layers: 2, num_key_value_heads: 4, tie_word_embeddings: true, vocab_size: 256}
optimizer: {accumulate_grad_in_fp32: true, optimizer_factory: {name: adamW, torch_adam_is_fused: true}, zero_stage: 0}
parallelism: {dp: 2, expert_parallel_size: 1, pp: 2, pp_engine: 1f1b, tp: 2, tp_mode: REDUCE_SCATTER}
tokens: {batch_accumulation_per_replica: 1, micro_batch_size: 2, sequence_length: 256, train_steps: 15}
"""  # noqa: E501
FOUNDRY = """variables: {max_seq_len: 256}
max_seq_len: ${variables.max_seq_len}
model: {name: mpt_causal_lm, init_device: meta, d_model: 128, n_heads: 4, n_layers: 2, expansion_ratio: 4,
  max_seq_len: "${variables.max_seq_len}", vocab_size: 512, attn_config: {attn_impl: flash}}
optimizer: {name: decoupled_adamw, lr: 1.2e-4}
global_train_batch_size: 16
device_train_microbatch_size: 2
precision: amp_bf16
fsdp_config: {sharding_strategy: FULL_SHARD, mixed_precision: PURE, activation_checkpointing: true}
"""
JOBS = "job,inst,user,Terminated,100.0,4000.0\n"
LINKS = {
    "schema": "cellplan.links/1",
    "measurements": [
        {"between": ["north", "south"], "at_s": 5, "bandwidth_bytes_per_s": 1.1e9, "latency_s": 0.005},
        {"between": ["north", "south"], "at_s": 8, "bandwidth_bytes_per_s": 0},
    ],
}
NAMED = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes:
      - {count: 4, device: h100, devices: 4, names: "n[1-4]"}
    fabric: {link: ib-ndr400}
"""
LEVELS = (
    NAMED.replace("fabric: {link: ib-ndr400}\n", "fabric:\n      link: ib-ndr400\n      levels:\n")
    + """        - name: leaf
          hop_latency_s: 5.0e-7
          parts: [{name: l1, nodes: "n[1-2]"}, {name: l2, nodes: 1}, {nodes: 1, uplink_bytes_per_s: 1.0e+11}]
        - name: pod
          oversubscription: 2
          spread: {collective: [1, 0.9], message: [1, 0.8]}
          parts: [{name: p1, parts: [l1]}, {name: p2, parts: 2}]
"""
)
WIRED = NAMED.replace(
    "fabric: {link: ib-ndr400}\n",
    """fabric:
      link: ib-ndr400
      topology:
        kind: wired
        switches: [{name: "l[1-2]", ports: 18}, {name: s1}]
        cables: [{between: ["n[1-2]", l1], count: 8}, {between: ["n[3-4]", l2], count: 8}, {between: ["l[1-2]", s1]}]
""",
)
CLOS = NAMED.replace(
    "fabric: {link: ib-ndr400}\n",
    """fabric:
      link: ib-ndr400
      topology: {kind: clos3, pods: 2, leaves: 2, aggregations: 2, cores: 4, nodes_per_leaf: 1, core_link: ib-hdr200}
""",
)
TRACES = """+ traceroute -U --sport=50000 -p 4791 n4
traceroute to n4 (10.0.9.2), 30 hops max, 60 byte packets
 1  leaf0 (10.0.1.2)  0.215 ms  0.187 ms  0.181 ms
 2  aggregation1 (10.0.3.2)  0.412 ms * *
 3  core2  0.5 ms
 4  * * *
 5  leaf3.dc.example (10.0.5.2)  0.530 ms
 6  n4 (10.0.9.2)  0.690 ms
+ mtr --json --udp --localport 50001 --port 4791 n4
{"report": {"mtr": {"src": "n1", "dst": "n4", "tests": 10}, "hubs": [
 {"count": 1, "host": "leaf0", "Loss%": 0.0}, {"count": 2, "host": "aggregation0 (10.0.2.2)", "Avg": 0.3},
 {"count": 3, "host": "???"}, {"count": 4, "host": "core1"}, {"count": 5, "host": "n4"}]}}
"""
COUNTERS = "time_s,nic0_bytes_total,gpu0_active\n" + "".join(
    f"{row / 10},{row // 10 * 4000 + max(0, row % 10 - 6) * 1000},{int(row % 10 < 8)}\n" for row in range(60)
)
CONTENDERS = """schema: cellplan.jobs/1
jobs:
  - {id: a, hosts: "n[1,3]", gpus: 0-1/2-3, traffic: {compute_s: 0.2, bytes: 1.0e+9, begins_s: 0.1, flops: 1.0e+15}}
  - {id: b, hosts: n2, gpus: 0-1, model: gpt-tiny, degrees: {dp: 2, global_batch: 8}, level: 1}
  - {id: c, hosts: "n[2,4]", gpus: 2-3/0-1, traffic: {compute_s: 0.1, bytes: 2.0e+9, op: all_gather}, weight: 2.0}
"""
SUBNET = """vendid=0x2c9
Switch\t64 "S-1"\t# "MF0;l1:MQM9700/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-1"[1](a1) \t# "n1 mlx5_0" lid 2 4xNDR
[2]\t"H-2"[1](a2) \t# "n2 mlx5_0" lid 3 4xNDR
[3]\t"S-2"[1]\t# "MF0;l2:MQM9700/U1" lid 4 4xHDR

Switch\t64 "S-2"\t# "MF0;l2:MQM9700/U1" enhanced port 0 lid 4 lmc 0
[1]\t"S-1"[3]\t# "MF0;l1:MQM9700/U1" lid 1 4xHDR
[2]\t"H-3"[1](a3) \t# "n3 mlx5_0" lid 5 4xNDR
[3]\t"H-4"[1](a4) \t# "n4 mlx5_0" lid 6 4xNDR
""" + "".join(
    f'\nCa\t1 "H-{host}"\t# "n{host} mlx5_0"\n[1](a{host}) \t"S-{leaf}"[{port}]\t# lid 9 lmc 0 "l" lid 1 4xNDR\n'
    for host, leaf, port in ((1, 1, 1), (2, 1, 2), (3, 2, 2), (4, 2, 3))
)
HYPERNODES = {
    "items": [
        {
            "kind": "HyperNode",
            "metadata": {"name": name},
            "spec": {
                "tier": 1,
                "members": [{"type": kind, "selector": {"exactMatch": {"name": of}}} for of in members],
            },
        }
        for name, kind, members in (
            ("top", "HyperNode", ("s1", "s2")),
            ("s1", "Node", ("n1", "n2")),
            ("s2", "Node", ("n3", "n4")),
        )
    ]
}
TOPOLOGY_CONF = """# leaves under a top
SwitchName=s1 Nodes=n[1-2]
SwitchName=s2 Nodes=n3,n4 LinkSpeed=100
SwitchName=top Switches=s[1-2]
"""
TOPOLOGY_YAML = """- topology: t
  cluster_default: true
  tree:
    switches:
      - {switch: s1, nodes: "n[1-2]"}
      - {switch: s2, nodes: "n3,n4"}
      - {switch: top, children: "s[1-2]"}
"""
HOSTS = "host,leaf,pod\n" + "".join(f"n{host},l{(host + 1) // 2},p{(host + 1) // 2}\n" for host in range(1, 5))
LABELLED = {
    "kind": "List",
    "items": [
        {
            "kind": "Node",
            "metadata": {
                "name": f"n{host}",
                "labels": {
                    "cloud.provider.com/topology-block": "b",
                    "cloud.provider.com/topology-rack": f"r{(host + 1) // 2}",
                },
            },
        }
        for host in range(1, 5)
    ],
}
NAMED_FREE = "NODELIST GRES GRES_USED STATE\n" + "".join(
    f"n{host} gpu:h100:4 gpu:h100:0 idle\n" for host in range(1, 5)
)
GAINS = "device,r1,r2,j_dp,j_pp,source\nh100,1,60,0.02,0.01,one\nh100,2,70,0.01,0.02,other\n"
SPREAD = "".join(
    NCCL.replace("Rank  0 Group  0 Pid  10 on  host", "Rank  0 Group  0 Pid  10 on  n1")
    .replace("Rank  1 Group  0 Pid  10 on  host", f"Rank  1 Group  0 Pid  11 on  {other}")
    .replace("50.00", seconds)
    for other, seconds in (("n2", "50.00"), ("n3", "60.00"))
)
SQUEUE = {
    "jobs": [
        {
            "job_id": number,
            "job_state": ["RUNNING"],
            "nodes": nodes,
            "start_time": {"set": True, "infinite": False, "number": 500},
            "end_time": {"set": True, "infinite": False, "number": 4600 * number},
            "time_limit": {"set": True, "infinite": False, "number": 60},
        }
        for number, nodes in ((1, "n1"), (2, "n[3]"))
    ],
    "last_update": {"set": True, "infinite": False, "number": 1000},
}
PREDICTED = {"jobs": [{"job_id": "1", "point_s": 2000, "interval_90_s": [800, None]}]}
RUNNING = 'job,hosts,end\n1,"n1",4600\n2,n[4],1970-01-01T02:00:00Z\n'
PRICES = """schema: cellplan.prices/1
date: "2026-03-01"
source: quote 7
currency: USD
price_per_device_hour: {a100-80gb: 2.5}
"""
