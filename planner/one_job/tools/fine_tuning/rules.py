"""What LLaMA-Factory, axolotl and Accelerate with PEFT can run: transformers' Trainer under DDP or DeepSpeed.

Keys as in LLaMA-Factory 0.9.5 (llamafactory/hparams), axolotl 0.19.0 (axolotl/utils/schemas), transformers 5.23
(TrainingArguments), peft 0.18 (LoraConfig) and accelerate 1.15 (commands/config/config_args.py).
"""

from __future__ import annotations

from functools import partial

from planner.one_job.tools.base.rules import ALL_LAYERS_RECOMPUTED
from planner.one_job.tools.base.tool import Rule, TrainingTool

OPTIMIZERS = {"adamw": "adamw_torch_fused", "adam8bit": "adamw_bnb_8bit", "adafactor": "adafactor", "sgd": "sgd"}
"""transformers' names (transformers/training_args.py, OptimizerNames)."""
PRECISIONS = ("bf16", "fp16", "fp32")

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
    job=(
        Rule(
            key="recipe.frozen_layers",
            allows=lambda s: s.job.frozen_layers is None,
            found="{s.job.frozen_layers}",
            expected="null: adapters or all weights learn",
        ),
        Rule(
            key="recipe.software.frozen_as",
            allows=lambda s: s.job.frozen_as != "gptq",
            found="{s.job.frozen_as}",
            expected="held, or nf4",
        ),
    ),
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
    write="fine_tuning.writing:write_llama_factory",
)
AXOLOTL = _fine_tuner(
    name="axolotl",
    summary="axolotl: full fine-tuning, LoRA and QLoRA as YAML",
    basis="axolotl 0.19: data parallelism, or DeepSpeed's ZeRO",
    write="fine_tuning.writing:write_axolotl",
)
PEFT = _fine_tuner(
    name="peft",
    summary="Accelerate, transformers' Trainer and PEFT: the arguments of each as files",
    basis="accelerate 1.15 with transformers 5 and peft 0.18: data parallelism, or DeepSpeed's ZeRO",
    write="fine_tuning.writing:write_peft",
)
