"""What a command printed with `--json`, held against its published schema."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pytest

from planner.cli.main import main
from planner.shared.documents import answer_schema, command_of


@cache
def validator(command: str) -> jsonschema.Draft202012Validator:
    """Return what validates all that the command prints."""
    return jsonschema.Draft202012Validator(answer_schema(command))


def checked(command: str, document: Any) -> Any:
    """Return a document that `command` printed, once it is one by the command's schema."""
    validator(command).validate(document)
    return document


def document_of(words: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command with `--json`, and return the document that it prints, which is one by the command's schema. Where
    it fails, the document says what the one line on stderr does."""
    capsys.readouterr()
    assert main([*words, "--json"]) == status
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    command = command_of(words)
    assert command is not None
    checked(command, document)
    if status == 0:
        assert shown.err == ""
        assert not isinstance(document, dict) or "failure" not in document
    else:
        failure = document["failure"]
        assert (failure["status"], failure["command"]) == (status, command)
        assert shown.err == f"cellplan: error: {failure['message']}\n"
    return document
