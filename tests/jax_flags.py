"""How JAX is to start for tests: one thread, as a profile wants it, and compiling fast rather than to fast programs.

Importing this settles it for the whole process, since JAX reads the environment when it first needs a device.
"""

import os

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
QUICK_TO_COMPILE = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_llvm_disable_expensive_passes=true",
)

os.environ.setdefault("XLA_FLAGS", " ".join((ONE_THREAD, *QUICK_TO_COMPILE)))
os.environ.setdefault("NPROC", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
