"""The server of `cellplan serve`: one page, the scripts that it runs, and what it asks for, under an address that holds
a random word. Requests are bounded in size and time; nothing in one is a path, and nothing of one is run as code."""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader, RawIOBase
from typing import Any
from urllib.parse import urlsplit

from planner import api
from planner.api.page_calls import app_html, script_text
from planner.cli.serve_fields import DEGREES, JOB, MONEY, RECOMPUTE, FieldError, field_of, read_fields
from planner.cli.serve_work import Begun, BusyError, CancelledWorkError, Work
from planner.shared.options.serve import ServeOptions
from profiles.errors import InputError, MachineError, NothingFits

MOST_BODY_BYTES = 256 * 1024
REQUEST_S = 15.0
"""A request that is not there, or an answer that is not taken, after so long is given up."""
MOST_CONNECTIONS = 32
SCRIPTS = ("vega.min.js", "vega-lite.min.js", "page.js", "app.js")
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self' 'unsafe-eval'; connect-src 'self'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Vega makes functions of its own expressions."""

TEXT = "text/plain; charset=utf-8"

Answer = dict[str, Any]


class RefusedError(Exception):
    """A request that is not answered: with which status, and why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class PageServer(ThreadingHTTPServer):
    """Serves the page at `url` until it is closed. Raise MachineError where the address cannot be had."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, options: ServeOptions, *, request_s: float = REQUEST_S) -> None:
        self.request_s = request_s
        host = "127.0.0.1" if options.host == "localhost" else options.host
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.token = secrets.token_urlsafe(18)
        self.work = Work(options.store, limit_s=options.call_limit)
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((host, options.port), _Handler)
        except OSError as error:
            self.work.close()
            raise MachineError(f"serve: {host} port {options.port}: {error.strerror or error}") from None
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_address[1]}/{self.token}/"
        self.hosts = {f"{name}:{self.server_address[1]}" for name in (shown, "localhost", "127.0.0.1", "[::1]")}
        self.any_host = options.allow_remote

    def server_close(self) -> None:
        """End the work, and the server."""
        self.work.close()
        super().server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection, or close it where there are too many."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is nobody's fault."""


class _Arriving(RawIOBase):
    """What comes over a connection within so many seconds, all of it together. Raise TimeoutError then."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._end_s = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there, or comes next."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request, and closes."""

    server: PageServer
    server_version = "cellplan"
    sys_version = ""

    def setup(self) -> None:
        """Read from what gives up in the end, however slowly it comes."""
        super().setup()
        self.rfile.close()
        self.rfile = BufferedReader(_Arriving(self.connection, self.server.request_s))

    def do_GET(self) -> None:
        """Answer with the page, a script, how far a search is, or what an answer holds."""
        self._reply(self._get)

    def do_POST(self) -> None:
        """Answer an estimate; begin or cancel a search; export a plan."""
        self._reply(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: addresses hold the random word."""

    def send_error(self, code: int, *_said: str | None, **_more: str | None) -> None:
        """Answer what is no request, or none of ours, with nothing of it in the answer."""
        self._send(HTTPStatus(code), TEXT, f"{HTTPStatus(code).phrase}\n".encode())

    def _reply(self, answer: Callable[[list[str]], tuple[str, str | bytes]]) -> None:
        try:
            kind, text = answer(self._path())
            status, body = HTTPStatus.OK, text.encode("utf-8") if isinstance(text, str) else text
        except RefusedError as refused:
            status, kind, body = refused.status, TEXT, f"{refused}\n".encode()
        except Exception:  # Whatever a request brings about ends that request alone.
            status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, b"this is a fault of cellplan's\n"
        self._send(status, kind, body)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.connection.settimeout(self.server.request_s)
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def _path(self) -> list[str]:
        """The parts of the path behind the random word. Raise RefusedError without it, or for another host's name,
        under which a page of somebody else's could ask."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) > 1:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "expected one Host")
        host = hosts[0] if hosts else ""
        if not self.server.any_host and host not in self.server.hosts:
            raise RefusedError(HTTPStatus.FORBIDDEN, "another host's name")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise RefusedError(HTTPStatus.FORBIDDEN, "a page of another origin")
        try:
            _, token, *parts = urlsplit(self.path).path.split("/")
        except ValueError:
            raise RefusedError(HTTPStatus.NOT_FOUND, "not found") from None
        if not parts or not secrets.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            raise RefusedError(HTTPStatus.NOT_FOUND, "not found")
        return parts

    def _get(self, parts: list[str]) -> tuple[str, str | bytes]:
        match parts:
            case [""]:
                return "text/html; charset=utf-8", _app()
            case ["static", name] if name in SCRIPTS:
                return "text/javascript; charset=utf-8", script_text(name)
            case ["search", name]:
                return _json(_state(self._begun(name)))
            case ["result", name, "report.html"]:
                return "text/html; charset=utf-8", str(self._done(name)["page"])
            case ["result", name, "answer.json"]:
                return _json(self._done(name)["answer"])
        raise RefusedError(HTTPStatus.NOT_FOUND, "not found")

    def _post(self, parts: list[str]) -> tuple[str, str | bytes]:
        body = self._body()
        match parts:
            case ["estimate"]:
                return _json(self._estimate(body))
            case ["search"]:
                return _json(self._search(body))
            case ["search", name, "cancel"]:
                self._begun(name).cancelled.set()
                return _json({})
            case ["result", name, "export"]:
                return _json(self._export(self._done(name)["answer"], body))
        raise RefusedError(HTTPStatus.NOT_FOUND, "not found")

    def _body(self) -> object:
        """The value of a request's body. Raise RefusedError for one that is too long, or no JSON."""
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
        lengths = self.headers.get_all("Content-Length", [])
        stated = lengths[0] if len(lengths) == 1 and "Transfer-Encoding" not in self.headers else ""
        if not (stated.isascii() and stated.isdigit()):
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        if len(stated) > 9 or int(stated) > MOST_BODY_BYTES:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected {MOST_BODY_BYTES} bytes at most")
        try:
            content = self.rfile.read(int(stated))
        except OSError:
            raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, "a body that did not come") from None
        if len(content) < int(stated):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "a body that ends early")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "expected JSON") from None

    def _estimate(self, body: object) -> Answer:
        try:
            asked = read_fields(body, search=False)
            begun = self._begin({"do": "estimate", "options": dict(asked.options), "config": asked.config})
        except FieldError as error:
            return {"failure": {"field": error.field, "message": str(error)}}
        return _outcome(begun)

    def _search(self, body: object) -> Answer:
        try:
            asked = read_fields(body, search=True)
        except FieldError as error:
            return {"failure": {"field": error.field, "message": str(error)}}
        options = {**asked.options, "explain": True}
        return {"id": self._begin({"do": "plan", "options": options, "config": asked.config}).id}

    def _export(self, answer: Mapping[str, Any], body: object) -> Answer:
        plan = answer.get("plan", answer)
        to = body.get("to") if isinstance(body, dict) else None
        if not isinstance(to, str) or "stages" not in plan:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "expected a plan, and the format to write it in")
        begun = self._begin({"do": "export", "plan": plan, "to": to})
        try:
            exported: Answer = begun.future.result()
        except (InputError, NothingFits, MachineError) as error:
            return {"failure": {"field": "", "message": str(error)}}
        return exported

    def _begin(self, question: Mapping[str, Any]) -> Begun:
        try:
            return self.server.work.begin(question)
        except BusyError:
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "too much is under way: wait, or cancel some") from None

    def _begun(self, name: str) -> Begun:
        begun = self.server.work.find(name)
        if begun is None:
            raise RefusedError(HTTPStatus.NOT_FOUND, "not found")
        return begun

    def _done(self, name: str) -> Mapping[str, Any]:
        """What an answered question came to. Raise RefusedError where there is none."""
        future = self._begun(name).future
        if not future.done() or future.cancelled() or future.exception() is not None:
            raise RefusedError(HTTPStatus.NOT_FOUND, "not found")
        answer: Mapping[str, Any] = future.result()
        return answer


def _state(begun: Begun) -> Answer:
    """How far a search is, or what it came to."""
    if not begun.future.done():
        return {"state": "running", "seconds": begun.seconds(), "said": begun.said()}
    outcome = _outcome(begun)
    return {"state": "cancelled" if outcome.pop("cancelled", False) else "done", **outcome}


def _outcome(begun: Begun) -> Answer:
    """What a question came to, when it has: what is shown, or what was wrong with which field."""
    try:
        answer = begun.future.result()
    except CancelledWorkError:
        return {"cancelled": True}
    except InputError as error:
        return {"failure": {"field": field_of(error.key), "message": str(error)}}
    except (NothingFits, MachineError) as error:
        return {"failure": {"field": "", "message": str(error)}}
    plan = answer["answer"].get("plan", answer["answer"])
    return {"id": begun.id, "content": answer["content"], "plan": "stages" in plan, "seconds": begun.seconds()}


def _json(value: object) -> tuple[str, str]:
    return "application/json", json.dumps(value, allow_nan=False)


@lru_cache(maxsize=1)
def _app() -> str:
    return app_html(
        {
            "job": list(JOB.items()),
            "degrees": list(DEGREES.items()),
            "money": list(MONEY.items()),
            "recompute": RECOMPUTE,
            "models": [model["name"] for model in api.models_list()],
            "clusters": [f"{device['name']}:1x8" for device in api.hardware_list()["devices"]],
            "formats": [form["format"] for form in api.export_formats()],
        }
    )
