"""The training tools that there are. Their readers and writers are imported when they are asked for."""

from __future__ import annotations

from planner.one_job.tools.accelerate import ACCELERATE
from planner.one_job.tools.base.tool import TrainingTool
from planner.one_job.tools.deepspeed.rules import DEEPSPEED
from planner.one_job.tools.device_mesh import DEVICE_MESH
from planner.one_job.tools.fine_tuning.rules import AXOLOTL, LLAMA_FACTORY, PEFT
from planner.one_job.tools.fine_tuning.torchtune import TORCHTUNE
from planner.one_job.tools.jax_mesh import JAX_MESH
from planner.one_job.tools.llm_foundry import LLM_FOUNDRY
from planner.one_job.tools.maxtext import MAXTEXT
from planner.one_job.tools.megatron.rules import BRIDGE, MEGATRON
from planner.one_job.tools.nanotron import NANOTRON
from planner.one_job.tools.torchtitan.rules import TORCHTITAN, TORCHTITAN_TOML

TOOLS: dict[str, TrainingTool] = {
    "megatron": MEGATRON,
    "bridge": BRIDGE,
    "torchtitan": TORCHTITAN,
    "torchtitan-toml": TORCHTITAN_TOML,
    "deepspeed": DEEPSPEED,
    "accelerate": ACCELERATE,
    "device-mesh": DEVICE_MESH,
    "jax-mesh": JAX_MESH,
    "maxtext": MAXTEXT,
    "llm-foundry": LLM_FOUNDRY,
    "nanotron": NANOTRON,
    "llama-factory": LLAMA_FACTORY,
    "axolotl": AXOLOTL,
    "peft": PEFT,
    "torchtune": TORCHTUNE,
}
