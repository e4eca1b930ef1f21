"""How the documentation is built: `make docs`. What can be said by the program is written by it, at each build."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))

import reference  # noqa: E402

from planner.shared.version import VERSION  # noqa: E402

project = "cellplan"
author = "the cellplan engineers"
release = version = VERSION
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_title = f"cellplan {VERSION}"
html_show_sphinx = html_show_copyright = False
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
nitpicky = True

reference.write(HERE / "reference_pages")

OUTSIDE = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)#]+)(?:#[^)]*)?\)")


def guide() -> str:
    """CONTRIBUTING.md as a page of this folder."""
    text = (HERE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?!https?:)([^)]+)\)", lambda link: f"]({_from_here(link[1])})", text)


def _from_here(target: str) -> str:
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"


def name_what_is_outside(app: Any, page: str, source: list[str]) -> None:
    """Links to files of the repository that are no part of the documentation become their paths."""
    if page == "contributing":
        source[0] = guide()
    folder, inside = (Path(app.srcdir) / page).parent, Path(app.srcdir).resolve()

    def named(link: re.Match[str]) -> str:
        file = (folder / link[2]).resolve()
        if file.is_relative_to(inside):
            return link[0]
        path = f"`{file.relative_to(inside.parent)}`"
        return path if link[1].strip("`").endswith(link[2].rpartition("/")[2]) else f"{link[1]} ({path})"

    source[0] = OUTSIDE.sub(named, source[0])


def setup(app: Any) -> None:
    """Connect what is done to pages as they are read."""
    app.connect("source-read", name_what_is_outside)
