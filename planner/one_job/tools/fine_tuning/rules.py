"""What LLaMA-Factory, axolotl and Accelerate with PEFT can run: transformers' Trainer under DDP or DeepSpeed.

Keys as in LLaMA-Factory 0.9.5 (llamafactory/hparams), axolotl 0.19.0 (axolotl/utils/schemas), transformers 5.23
(TrainingArguments), peft 0.21 (LoraConfig) and accelerate 1.15 (commands/config/config_args.py).
"""

from __future__ import annotations

from functools import partial

from planner.one_job.tools.base.rules import ALL_LAYERS_RECOMPUTED
from planner.one_job.tools.base.tool import Rule, TrainingTool, listed

OPTIMIZERS = {"adamw": "adamw_torch_fused", "adam8bit": "adamw_bnb_8bit", "adafactor": "adafactor", "sgd": "sgd"}
"""transformers' names (transformers/training_args.py, OptimizerNames)."""
PAGED_OPTIMIZERS = {"adamw": "paged_adamw_32bit", "adam8bit": "paged_adamw_8bit"}
"""Those whose state is in memory that device and host share."""
PRECISIONS = ("bf16", "fp16", "fp32")

NO_GPTQ = Rule(
    key="recipe.software.frozen_as",
    allows=lambda s: s.job.frozen_as != "gptq",
    found="{s.job.frozen_as}",
    expected="held, or nf4",
)

_JOB = (
    NO_GPTQ,
    Rule(
        key="recipe.software.memory.paged_states",
        allows=lambda s: not s.job.paged_states or s.job.optimizer in PAGED_OPTIMIZERS,
        found="true with {s.job.optimizer}",
        expected=f"paged states of {listed(tuple(PAGED_OPTIMIZERS))}",
    ),
)
_ONE_SPAN_LEARNS = Rule(
    key="recipe.frozen_layers",
    allows=lambda s: s.job.frozen_layers is None or _at_one_end(s.job.blocks, *s.job.frozen_layers),
    found="{s.job.frozen_layers}",
    expected="all layers up to some block, or from some block on (freeze_trainable_layers)",
)


def _at_one_end(blocks: int, first: int, end: int) -> bool:
    """Whether layers [first, end) are the first or the last of so many blocks between embedding and head, and leave a
    block that learns."""
    return (first == 0 and end <= blocks) or (first > 1 and end == blocks + 2)


_fine_tuner = partial(
    TrainingTool,
    software="huggingface",
    schedules=("1f1b",),
    recompute=("none", "full"),
    zero=(0, 1, 2, 3),
    sharded_pipelines=(),
    trains_all=False,
    optimizers=tuple(OPTIMIZERS),
    dtypes=PRECISIONS,
    job=_JOB,
    degrees=(
        Rule(key="stages", allows=lambda s: s.pp == 1, found="{s.pp} pipeline stages", expected="one"),
        Rule(key="stages[].tp", allows=lambda s: s.tp == 1, expected="1"),
        Rule(key="stages[].cp", allows=lambda s: s.cp == 1, expected="1"),
        Rule(key="stages[].ep", allows=lambda s: s.ep == 1, expected="1"),
    ),
    states=(
        Rule(
            key="stages[].sharding.zero",
            allows=lambda s: s.zero < 3 or s.job.frozen_as == "held",
            found="{s.zero} with weights in 4 bits",
            expected="ZeRO 0 to 2 with these, which DeepSpeed does not share",
        ),
        Rule(
            key="stages[].sharding.shard",
            allows=lambda s: s.zero == 0 or s.replicate == 1,
            expected="all replicas",
        ),
        Rule(
            key="stages[].offload",
            allows=lambda s: not s.offload or (set(s.offload) == {"optimizer"} and s.zero > 0),
            found="{s.offload} with ZeRO {s.zero}",
            expected="nothing, or the optimizer with ZeRO 1 to 3 (offload_optimizer)",
        ),
    ),
    whole=(ALL_LAYERS_RECOMPUTED,),
)

LLAMA_FACTORY = _fine_tuner(
    name="llama-factory",
    summary="LLaMA-Factory: full fine-tuning, LoRA and QLoRA as YAML",
    basis="LLaMA-Factory 0.9: data parallelism, or DeepSpeed's ZeRO",
    job=(*_JOB, _ONE_SPAN_LEARNS),
    model="fine_tuning.writing:refuse_model",
    write="fine_tuning.writing:write_llama_factory",
    read="fine_tuning.read:read_llama_factory",
)
AXOLOTL = _fine_tuner(
    name="axolotl",
    summary="axolotl: full fine-tuning, LoRA and QLoRA as YAML",
    basis="axolotl 0.19: data parallelism, or DeepSpeed's ZeRO",
    model="fine_tuning.writing:refuse_model",
    write="fine_tuning.writing:write_axolotl",
    read="fine_tuning.read:read_axolotl",
)
PEFT = _fine_tuner(
    name="peft",
    summary="Accelerate, transformers' Trainer and PEFT: the arguments of each as files",
    basis="accelerate 1.15 with transformers 5 and peft 0.21: data parallelism, or DeepSpeed's ZeRO",
    write="fine_tuning.writing:write_peft",
    read="fine_tuning.read:read_trainer",
)
