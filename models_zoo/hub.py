"""A model's `config.json` by its id on the Hugging Face Hub: out of the local cache, else fetched where it may be.

The cache is read as huggingface_hub lays it out (`models--ORG--NAME/refs/REVISION`, `snapshots/COMMIT/config.json`)
without that package, which is needed for the network alone. Nothing but the config is read, and no more of it than a
text may have.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread

from profiles.errors import InputError, MachineError
from profiles.limits import LIMITS
from profiles.opening import open_at_once
from profiles.records import dataclass

ANSWER_LIMIT_S = 10.0
"""How long the Hub may take to say anything."""

FETCH_LIMIT_S = 60.0
"""How long it may take in all."""

_ID = re.compile(r"(?P<name>[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}?)(@(?P<revision>[\w][\w./-]{0,199}))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILES = (".json", ".yaml", ".yml", ".toml", ".py", ".csv", ".sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubId:
    """`org/name`, and the branch, tag or commit that `@` states."""

    name: str
    revision: str = "main"

    @property
    def text(self) -> str:
        """The id as the user writes it."""
        return self.name if self.revision == "main" else f"{self.name}@{self.revision}"

    @property
    def command(self) -> str:
        """The line that gets the config into the cache."""
        revision = "" if self.revision == "main" else f" --revision {self.revision}"
        return f"`hf download {self.name} config.json{revision}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """Where a model's config lies, and the commit that it is of (None: nobody says)."""

    path: Path
    commit: str | None


def hub_id(reference: str) -> HubId | None:
    """Return the id that `reference` is, None where it has not the form of one.

    >>> hub_id("meta-llama/Llama-3.1-8B@v1.0").revision, hub_id("configs/llama.json"), hub_id("llama3-8b")
    ('v1.0', None, None)
    """
    match = _ID.fullmatch(reference)
    if match is None or reference.endswith(_FILES) or ".." in reference:
        return None
    return HubId(name=match["name"], revision=match["revision"] or "main")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that huggingface_hub keeps models in, by its variables."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(variable):
            return _at_home(environment[variable])
    home = environment.get("HF_HOME")
    if home:
        return _at_home(home) / "hub"
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return _at_home(cache) / "huggingface" / "hub"


def _at_home(path: str) -> Path:
    """`path` with what `~` stands for, or as it is where this user has no home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def cached_config(wanted: HubId, folder: Path | None = None) -> HubConfig | None:
    """Return the config of `wanted` in the cache at `folder`; None where there is none."""
    model = (folder or cache_folder()) / f"models--{wanted.name.replace('/', '--')}"
    commit = wanted.revision
    if not _COMMIT.fullmatch(commit):
        try:
            with open_at_once(model / "refs" / wanted.revision) as file:
                commit = file.read(64).decode("ascii", "replace").strip()
        except OSError:
            return None
        if not _COMMIT.fullmatch(commit):
            return None
    path = model / "snapshots" / commit / "config.json"
    return HubConfig(path=path, commit=commit) if path.is_file() else None


def fetch_config(wanted: HubId) -> HubConfig:
    """Return the config of `wanted`, fetched into the cache by huggingface_hub.

    Raise InputError where that package is missing or offline, or the Hub has no such config or does not give it to
    this user; MachineError where it cannot be reached or takes too long.
    """
    try:
        from huggingface_hub import constants
    except ImportError:
        raise _lacking(
            wanted, f"nothing that is in {cache_folder()}, and no huggingface_hub that could fetch it"
        ) from None
    if constants.is_offline_mode():
        raise _lacking(wanted, f"nothing that is in {cache_folder()}, and HF_HUB_OFFLINE set")
    fetched: list[str] = []
    failed: list[BaseException] = []

    def fetch() -> None:
        try:
            fetched.append(_fetch(wanted))
        except BaseException as error:  # handed on to the caller's thread
            failed.append(error)

    _within(fetch, wanted)
    if failed:
        raise _explained(wanted, failed[0])
    path = Path(fetched[0])
    return HubConfig(path=path, commit=path.parent.name if _COMMIT.fullmatch(path.parent.name) else None)


def _within(work: Callable[[], None], wanted: HubId) -> None:
    """Run `work` in a thread that is left behind if it takes too long: a server may send a byte now and then."""
    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(FETCH_LIMIT_S)
    if thread.is_alive():
        raise MachineError(
            f"{wanted.text}: the Hub took more than {FETCH_LIMIT_S:g} s for a config; {_by_hand(wanted)}"
        )


def _fetch(wanted: HubId) -> str:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    endpoint = os.environ.get("HF_ENDPOINT") or None
    url = hf_hub_url(wanted.name, "config.json", revision=wanted.revision, endpoint=endpoint)
    size = get_hf_file_metadata(url, timeout=ANSWER_LIMIT_S, endpoint=endpoint).size
    if size is not None:
        LIMITS.text_bytes.check(size, where=f"{wanted.text}, config.json")
    return hf_hub_download(
        wanted.name,
        "config.json",
        revision=wanted.revision,
        cache_dir=cache_folder(),
        etag_timeout=ANSWER_LIMIT_S,
        endpoint=endpoint,
    )


def _explained(wanted: HubId, error: BaseException) -> Exception:
    """What an error of huggingface_hub means to the user."""
    from huggingface_hub import errors

    if isinstance(error, InputError | MachineError):
        return error
    found = {
        errors.GatedRepoError: "a gated model, and no access to it",
        errors.RepositoryNotFoundError: "no such model, or a private one that you are not logged in to",
        errors.RevisionNotFoundError: f"a model without a revision {wanted.revision}",
        errors.RemoteEntryNotFoundError: "a model without a config.json",
    }
    for kind, said in found.items():
        if isinstance(error, kind):
            return _lacking(wanted, said, login=kind in (errors.GatedRepoError, errors.RepositoryNotFoundError))
    if isinstance(error, errors.HfHubHTTPError):
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            return _lacking(wanted, "a model that the Hub does not give you", login=True)
        return MachineError(f"{wanted.text}: the Hub answered {status or 'with an error'}; {_by_hand(wanted)}")
    cause = type(error.__cause__ or error).__name__
    return MachineError(f"{wanted.text}: the Hub could not be reached ({cause}); {_by_hand(wanted)}")


def _lacking(wanted: HubId, found: str, *, login: bool = False) -> InputError:
    access = "access (`hf auth login`), " if login else ""
    expected = f"{access}a config in the cache ({wanted.command} where there is a network), or a path to a config.json"
    return InputError(
        where="model", key=wanted.text, found=f"no path of that name; on the Hub {found}", expected=expected
    )


def _by_hand(wanted: HubId) -> str:
    return f"{wanted.command} where there is a network, or a path to a config.json, does without it"
