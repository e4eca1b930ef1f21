"""A page as one HTML file: templates filled in, with all that it needs inside."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from planner.report.records import Page
from planner.shared.version import VERSION
from profiles.errors import InputError
from profiles.files import check_folder, write_atomically

HERE = Path(__file__).parent
SCRIPTS = ("vendored/vega.min.js", "vendored/vega-lite.min.js", "templates/page.js")
APP_SCRIPT = "templates/app.js"


def check_report(path: Path, *, where: str) -> None:
    """Raise InputError, of the option --report of the command `where`, for a name that is not a page's, or where there
    is no such folder or no Jinja2."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(where=where, key="--report", found=path, expected="a file name that ends in .html")
    check_folder(path, where=where, key="--report")
    require_jinja(where=where, key="--report")


def require_jinja(*, where: str, key: str | None = None) -> None:
    """Raise InputError where what fills in templates is not installed."""
    if find_spec("jinja2") is None:
        expected = "it to be there: pip install 'cellplan[report]'"
        raise InputError(where=where, key=key, found="no Jinja2 in this Python", expected=expected)


def save_page(page: Page, path: Path) -> None:
    """Write the page into the file at `path`, whole or not at all."""
    write_atomically(path, page_html(page))


def page_html(page: Page) -> str:
    """Return the text of the page: the same for the same page."""
    return _rendered(
        "page.html.jinja",
        page=page,
        style=_text("templates/style.css"),
        scripts=[_text(name) for name in SCRIPTS],
        answer=pack_answer(page.answer),
    )


def content_html(page: Page) -> str:
    """Return what the page shows, without the style and the scripts around it."""
    return _rendered("content.html.jinja", page=page)


def app_html(values: Mapping[str, Any]) -> str:
    """Return the page of `cellplan serve`, whose template takes `values`."""
    return _rendered("app.html.jinja", style=_text("templates/style.css"), **values)


def script_text(name: str) -> str:
    """Return one of the scripts that pages run, by its file's name."""
    return _text(next(path for path in (*SCRIPTS, APP_SCRIPT) if path.endswith(f"/{name}")))


def _rendered(template: str, **values: Any) -> str:
    return str(
        _environment()
        .get_template(template)
        .render(version=VERSION, kind_of=_kind_of, json=_json_in_script, flags=_flags, **values)
    )


@lru_cache(maxsize=1)
def _environment() -> Any:
    """The templates, which are compiled once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )


def _kind_of(part: object) -> str:
    return type(part).__name__


def pack_answer(answer: Any) -> str:
    """Return what a command prints with --json as the page carries it: compressed, in letters."""
    return base64.b64encode(gzip.compress(json.dumps(answer, allow_nan=False).encode("utf-8"), mtime=0)).decode("ascii")


def unpack_answer(html: str) -> Any:
    """Return the answer that a page carries."""
    _, _, after = html.partition('<script type="text/plain" id="answer">')
    return json.loads(gzip.decompress(base64.b64decode(after.partition("</script>")[0])))


def _flags(text: str) -> Any:
    """A text whose options (--so-called) stay on one line each."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"--[a-z][a-z-]*[a-z]", r'<span class="flag">\g<0></span>', str(escape(text))))


def _json_in_script(value: Any) -> Any:
    """JSON that ends no script and opens no comment."""
    from markupsafe import Markup

    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@lru_cache(maxsize=8)
def _text(name: str) -> str:
    """A file of ours or a vendored one, without the name of a map that is not there."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("//# sourceMappingURL="))
