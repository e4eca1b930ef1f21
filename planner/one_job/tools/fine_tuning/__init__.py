"""Tools that fine-tune models of Hugging Face: data parallelism and ZeRO, adapters, weights in 4 bits."""
