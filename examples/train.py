"""Fine-tuning with transformers' Trainer: read by `cellplan estimate --from trainer`, never run. Invented."""

from peft import LoraConfig
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", attn_implementation="flash_attention_2")
adapters = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
arguments = TrainingArguments(
    output_dir="out",
    bf16=True,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    gradient_checkpointing=True,
    optim="adamw_torch_fused",
)
Trainer(model=model, args=arguments).train()
