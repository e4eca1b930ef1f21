"""Root among namespaces of one's own, where the kernel lets anybody have them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from estimator.host.children import child_processes

_INSIDE = "CELLPLAN_TESTBED_INSIDE"
_ENTER = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--kill-child")
_PREPARE = ("sh", "-c", 'mount -t tmpfs none /run && mkdir /run/netns && exec "$@"', "sh")


def in_user_namespace(module: str, arguments: Sequence[str]) -> int | None:
    """Run a module again as root of a user namespace and return how it ended; None for root, and where there is no such
    namespace to be had: then this process goes on as it is. What it makes is gone when its last process is, and that
    ends when this one does."""
    if os.geteuid() == 0 or _INSIDE in os.environ or shutil.which(_ENTER[0]) is None:
        return None
    probe = subprocess.run((*_ENTER, *_PREPARE, "true"), capture_output=True, check=False)
    if probe.returncode:
        return None
    command = (*_ENTER, *_PREPARE, sys.executable, "-m", module, *arguments)
    with child_processes() as children:
        return children.start(command, env={**os.environ, _INSIDE: "1"}).wait()
