"""What the page of `cellplan serve` asks for, each in a process that answers for it: an estimate or a plan with its
page, a plan in a tool's format."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from estimator.frontends.live import name_config
from estimator.host.answering import serve
from models_zoo.catalogue import near_names, zoo_name
from models_zoo.hub import hub_id
from planner import api
from planner.api.one_job import estimate_for_page, plan_for_page
from planner.report.page import content_html, page_html
from planner.report.writing import estimate_page, searched_page
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.record import Progress
from planner.shared.options.running import ExportOptions
from planner.shared.options.search import PlanOptions
from profiles.errors import InputError
from profiles.reference_nodes import is_short_form

Document = dict[str, Any]


def answer_question(question: Document) -> Document:
    """Return what was asked for.

    `question["do"]` is `estimate`, `plan` or `export`. Of the first two `options` are those of the command, and
    `config` the keys of a config that stands in the model's place, or None; the answer has `answer`, as the command
    prints it with --json, `content`, what is shown of it, and `page`, the whole page. Of `export`, `plan` and `to`.
    """
    if question["do"] == "export":
        return _export(question["plan"], question["to"])
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in question["options"].items()
    }
    if question["config"] is not None:
        options["model"] = name_config(question["config"])
    _refuse_files(options, given=question["config"] is not None)
    store = question["store"]
    options["store"] = Path(store) if store is not None and Path(store).exists() else None
    if question["do"] == "estimate":
        asked = EstimateOptions(**options)
        estimated = estimate_for_page(asked)
        page = estimate_page(estimated, store=asked.store, profiles=asked.profiles, code=asked.user_code)
    else:
        searched = PlanOptions(**options, progress=_teller(Path(question["progress"])))
        page = searched_page(searched, plan_for_page(searched))
    return {"answer": page.answer, "content": content_html(page), "page": page_html(page)}


def _refuse_files(options: Document, *, given: bool) -> None:
    """Raise InputError for a model or a cluster that would be read from a file, or is code."""
    model, cluster = options.get("model", ""), options.get("cluster", "")
    if not given and zoo_name(model) is None and hub_id(model) is None:
        expected = f"a name such as {near_names(model)}, or an id of the Hub such as org/name"
        raise InputError(where="serve", key="model", found=repr(model), expected=expected)
    if not all(is_short_form(part.strip()) for part in cluster.split("+")):
        expected = "such as h100:2x8 (2 nodes of 8), or a sum of such with +"
        raise InputError(where="serve", key="cluster", found=repr(cluster), expected=expected)


def _teller(path: Path) -> Progress:
    """What notes in a file how far a search is; the server reads it there."""

    def tell(done: int, total: int, left_s: float | None, what: str) -> None:
        left = "" if left_s is None else f", {left_s:.0f} s left"
        path.write_text(f"{done} of {total}{left} ({what})", encoding="utf-8")

    return tell


def _export(plan: Document, to: str) -> Document:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps(plan), encoding="utf-8")
        return api.export(ExportOptions(plan=file, to=to))


def main() -> None:
    """Answer until nobody asks any more, in a folder of its own: no name in a question is that of a file."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        serve(lambda question: json.loads(json.dumps(answer_question(question), allow_nan=False)))


if __name__ == "__main__":
    main()
