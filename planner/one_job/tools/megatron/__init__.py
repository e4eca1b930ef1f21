"""Megatron-LM and Megatron-Bridge, which both run Megatron Core."""
