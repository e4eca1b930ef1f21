"""Root among namespaces of one's own, where the kernel lets anybody have them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

_INSIDE = "CELLPLAN_TESTBED_INSIDE"
_PREPARE = 'mount -t tmpfs none /run && mkdir /run/netns && exec "$@"'


def in_user_namespace(module: str, arguments: Sequence[str]) -> int | None:
    """Run a module again as root of a user namespace and return how it ended; None for root, and where there is no such
    namespace to be had: then this process goes on as it is. What it makes is gone when its last process is."""
    if os.geteuid() == 0 or _INSIDE in os.environ or shutil.which("unshare") is None:
        return None
    enter = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--kill-child", "sh", "-c", _PREPARE, "sh")
    probe = subprocess.run((*enter, "true"), capture_output=True, check=False)
    if probe.returncode:
        return None
    command = (*enter, sys.executable, "-m", module, *arguments)
    return subprocess.run(command, env={**os.environ, _INSIDE: "1"}, check=False).returncode
