"""Which pods a job's nodes come from, and which rank sits on which node: the job as a matrix of nodes, placed.

Source: Arnold ("Efficient Pre-Training of LLMs via Topology-Aware Communication Alignment on More Than 9600 GPUs").
"""
