#!/bin/bash
# A launcher of Megatron-LM for Llama-3 8B on two nodes of eight H100. Invented, for the documentation.
TP=4
PP=2
torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --sequence-parallel \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 \
    --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights \
    --position-embedding-type rope --vocab-size 128256 --tokenizer-type NullTokenizer \
    --micro-batch-size 1 --global-batch-size 128 --bf16 --use-flash-attn --use-distributed-optimizer \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
