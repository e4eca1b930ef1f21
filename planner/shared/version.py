"""The version of the installed distribution: what `cellplan --version` prints and a plan records."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("cellplan")
