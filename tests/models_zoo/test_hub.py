"""Hub ids: out of a cache as huggingface_hub lays it out, and from a server that answers as the Hub does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from estimator.frontends.load import load_any_model
from models_zoo import hub
from models_zoo.hub import HubId, cache_folder, cached_config, hub_id
from models_zoo.user_code import NO_CODE
from profiles.errors import InputError, MachineError
from profiles.limits import LIMITS
from tests.processes import HANGS_S

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40
CONFIG = {
    **{"model_type": "llama", "vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"intermediate_size": 80, "max_position_embeddings": 64},
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(cache: Path, name: str, *, commit: str = COMMIT, revision: str | None = "main", **keys: Any) -> None:
    model = cache / f"models--{name.replace('/', '--')}"
    folder = model / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | keys))
    if revision is not None:
        (model / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
        (model / "refs" / revision).write_text(commit)


def test_a_cached_config_by_id_branch_and_commit(cache: Path) -> None:
    put(cache, "some-org/Some.Model-1B")
    put(cache, "some-org/Some.Model-1B", commit=OTHER, revision="refs/pr/3", num_hidden_layers=5)
    model = load_any_model("some-org/Some.Model-1B", NO_CODE)
    assert (model.name, len(model.layers)) == ("Some.Model-1B", 5)
    assert model.source.endswith(f"some-org/Some.Model-1B of the Hugging Face Hub at commit {COMMIT[:12]}")
    for revision in ("refs/pr/3", OTHER):
        assert len(load_any_model(f"some-org/Some.Model-1B@{revision}", NO_CODE).layers) == 7


def test_what_the_user_has_cached_goes_before_the_zoo(cache: Path) -> None:
    assert load_any_model("meta-llama/Llama-3.1-8B", NO_CODE).name == "llama3-8b"
    put(cache, "meta-llama/Llama-3.1-8B")
    assert len(load_any_model("meta-llama/Llama-3.1-8B", NO_CODE).layers) == 5


@pytest.mark.parametrize("ref", ["main", "../../../../secret", "", "0" * 39, "\x00"])
def test_a_ref_that_is_no_commit_leads_nowhere(cache: Path, ref: str) -> None:
    put(cache, "org/name", revision=None)
    (cache / "models--org--name/refs").mkdir()
    (cache / "models--org--name/refs/main").write_text(ref)
    assert cached_config(HubId(name="org/name")) is None


def test_where_the_cache_is() -> None:
    assert cache_folder({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}) == Path("/a")
    assert cache_folder({"HUGGINGFACE_HUB_CACHE": "/a"}) == Path("/a")
    assert cache_folder({"HF_HOME": "/b"}) == Path("/b/hub")
    assert cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/huggingface/hub")
    assert cache_folder({}) == Path.home() / ".cache/huggingface/hub"


@pytest.mark.parametrize("text", ["a/b/c", "org/", "/name", "org/name@", "org/../name", "x/y.json", "-", "org/na me"])
def test_what_is_no_id(text: str) -> None:
    assert hub_id(text) is None


class Hub(BaseHTTPRequestHandler):
    """Answers for `org/NAME` what NAME says."""

    body = json.dumps(CONFIG).encode()
    wait = threading.Event()

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        name = self.path.split("/")[2]
        errors = {
            "gated": (403, "GatedRepo"),
            "login": (401, ""),
            "absent": (404, "RepoNotFound"),
            "empty": (404, "EntryNotFound"),
            "untagged": (404, "RevisionNotFound"),
            "broken": (500, ""),
        }
        if name == "silent":
            self.wait.wait(HANGS_S)
            return
        status, code = errors.get(name, (200, ""))
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", '"abc"')
        size = LIMITS.text_bytes.most + 1 if name == "huge" else len(self.body) if status == 200 else 0
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if with_body and status == 200:
            self.wfile.write(self.body)

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.fixture
def server(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    del cache
    served = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    served.daemon_threads = True
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{served.server_address[1]}")
    monkeypatch.setattr(hub, "ANSWER_LIMIT_S", HANGS_S)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    Hub.wait.clear()
    yield
    Hub.wait.set()
    served.shutdown()
    served.server_close()


@pytest.mark.usefixtures("server")
def test_a_config_is_fetched_once_into_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_any_model("org/fine", NO_CODE)
    assert len(model.layers) == 5
    assert cached_config(HubId(name="org/fine"), cache) is not None
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load_any_model("org/fine", NO_CODE) == model


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("gated", InputError, "a gated model, and no access to it, expected access"),
        ("login", InputError, "a model that the Hub does not give you"),
        ("absent", InputError, "no such model, or a private one"),
        ("empty", InputError, "a model without a config.json"),
        ("untagged@v9", InputError, "a model without a revision v9"),
        ("huge", InputError, "bytes"),
        ("broken", MachineError, "the Hub answered 500"),
        ("silent", MachineError, "the Hub could not be reached"),
    ],
)
def test_each_failure_is_one_clear_error(
    name: str, kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "silent":
        monkeypatch.setattr(hub, "ANSWER_LIMIT_S", 0.2)
    with pytest.raises(kind, match=said) as caught:
        load_any_model(f"org/{name}", NO_CODE)
    assert f"org/{name}" in str(caught.value)
    assert name == "huge" or f"hf download org/{name.partition('@')[0]} config.json" in str(caught.value)


@pytest.mark.usefixtures("cache")
def test_offline_and_without_the_package_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"HF_HUB_OFFLINE set, expected .*`hf download org/none config\.json`"):
        load_any_model("org/none", NO_CODE)
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(InputError, match="no huggingface_hub that could fetch it"):
        load_any_model("org/none", NO_CODE)


@pytest.mark.usefixtures("cache")
def test_a_process_that_has_imported_nothing_of_the_hub_asks_it_likewise() -> None:
    """The package's parts are attributes of it only once somebody has imported them."""
    program = "from models_zoo.hub import HubId, fetch_config\nfetch_config(HubId(name='org/none'))"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "InputError: model: org/none" in ended.stderr
    assert "HF_HUB_OFFLINE set" in ended.stderr
