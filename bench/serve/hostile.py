"""Requests that nobody should send: made by number and seed, each a row of pieces of bytes with pauses between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

NUL, LONG = "\x00", "a" * 5000
TEXTS = (
    "", " ", "0", "-1", "1e308", "9" * 400, "NaN", "nan", "Infinity", "-0", "0x10", "1_000", "٣", "½", "²",
    "1,2", "1.5",
    "x" * 399, LONG, NUL, "a\x00b", "\n", "a\nb: c", "\r\n\r\n", "\u202etxt", "\ud800", "😀" * 50, "é",
    "{{7*7}}", "${x}",
    "<script>alert(1)</script>", "';drop table", "$(touch x)", "`id`", "|id", "; id", "../../../../etc/passwd",
    "/etc/passwd", "/dev/zero", "/proc/self/environ", "file:///etc/passwd", "http://127.0.0.1:9/",
    "\\\\host\\share", "-",
    "--", "--store=/etc/passwd", "-h", "--help", "--version", "@/etc/passwd", "os:system", "canary:make",
    "a/b", "../x/y", "canary.json", "canary.yaml", "local:1x2", "none", "auto", "h100:1x8@canary.yaml",
    "h100:100000000x8", "h100:0x8", "h100:1x8+" * 40 + "h100:1x8", "h100:-1x8", "h100:1x99999999999999999999",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 10**400, 1.5, [], {}, [[]], {"a": {}}, [None] * 1000, "text", [1, 2], {"": ""},
    {"__proto__": {"x": 1}}, {"constructor": 1},
)  # fmt: skip
RAW_BODIES = (
    b"", b"{", b"[", b"nul", b"NaN", b"Infinity", b"-Infinity", b"1e999", b'{"tp": NaN}', b'{"tp": 1e999}', b'"\xff"',
    b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"{}{}", b"{} x", b'{"tp": "1", "tp": "2"}', b'{"a": "\\ud800"}', b"[" * 100_000,
    b'{"a":' * 50_000, b"[[[[" + b"]" * 4, b"0" * 5000, b'{"config": "' + b"[" * 40_000 + b'"}', b"\x00" * 64, b"'a'",
    b'{"model": "gpt2-350m",}', b"//x\n{}", b"{" + b'"a":1,' * 20_000 + b'"b":2}', b"1" * 100_000,
)  # fmt: skip
HOSTS = (
    "evil.example", "127.0.0.1", "localhost", "127.0.0.1:1", "[::1]:0", "", " ", "127.0.0.1.evil.example:{port}",
    "evil.example:{port}", "localhost:{port}@evil.example", "127.0.0.1:{port}\x00", "0.0.0.0:{port}",
    "2130706433:{port}",
    "LOCALHOST:{port}.", "127.1:{port}", "a" * 4000,
)  # fmt: skip
ORIGINS = (
    "null",
    "http://evil.example",
    "http://evil.example:{port}",
    "file://",
    "",
    "http://127.0.0.1",
    "x",
    "http://[",
)
METHODS = (
    "GET",
    "POST",
    "PUT",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PATCH",
    "PRI",
    "get",
    "G\x00T",
    "A" * 300,
)
PIECES = (
    "static", "..", "%2e%2e", "%2f", "search", "result", "estimate", "export", "cancel", "report.html", "answer.json",
    "etc", "passwd", "\\", "a" * 300, "%00", "?x=1", "0" * 16, ";", "page.js", "vega.min.js", "%ff", "", ".",
    "~", "%c0%ae",
    "page.html.jinja", "app.js%00.html", "static%2fpage.js", "__class__",
)  # fmt: skip
FIELDS = (
    "model", "config", "cluster", "recompute", "devices", "global_batch", "seq_len", "dtype", "optimizer", "software",
    "tp", "pp", "dp", "cp", "ep", "vpp", "micro_batch", "zero", "train_tokens", "price",
)  # fmt: skip
UNKNOWN = (
    "store",
    "code",
    "report",
    "output",
    "__class__",
    "help",
    "json",
    "profiles",
    "user_code_limit",
    "",
    "tp\x00",
    LONG,
)
GOOD = {"model": "gpt2-350m", "cluster": "a100-80gb:1x4", "global_batch": "64", "tp": "2"}
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is sent over one connection: pieces, `pause_s` between them, and whether the sender then closes its half or
    goes away at once. `may_succeed`: an answer of status 200 is no fault."""

    kind: str
    pieces: tuple[bytes, ...]
    pause_s: float = 0.0
    half_close: bool = False
    leaves: bool = False
    may_succeed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom it is sent to."""

    port: int
    token: str


Maker = Callable[[Random, Target], Request]


def make_request(number: int, seed: int, target: Target) -> Request:
    """Return request `number`: the kinds follow each other, what is in one is drawn."""
    makers = list(MAKERS.values())
    draw = Random(f"{seed}/{number}")
    return makers[number % len(makers)](draw, target)


def _http(
    target: Target,
    method: str = "POST",
    path: str = "estimate",
    *,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    token: str | None = None,
    without: tuple[str, ...] = (),
) -> bytes:
    taken = {"Host": f"127.0.0.1:{target.port}", "Content-Type": "application/json", "Content-Length": str(len(body))}
    taken = {name: value for name, value in taken.items() if name not in without} | dict(headers or {})
    word = target.token if token is None else token
    lines = [f"{method} /{word}/{path} HTTP/1.1", *(f"{name}: {value}" for name, value in taken.items())]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _broken_lines(draw: Random, target: Target) -> Request:
    line = draw.choice(
        (
            b"", b"\r\n", b"GET", b"GET /", b"GET / HTTP/9.9", b"GET / HTTP/1.1.1", b"GET  /  HTTP/1.1",
            b"/ GET HTTP/1.1",
            b"GET / HTTP/-1", b"GET / HTTP/1.x", b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 500, draw.randbytes(300),
            b"GET /" + b"a" * 70_000 + b" HTTP/1.1", b"GET http://evil.example/ HTTP/1.1", b"GET /\xff\xfe HTTP/1.1",
            b"GET /%zz HTTP/1.1", b"GET //[ HTTP/1.1", b"PRI * HTTP/2.0", b"GET / HTTP/1.1 HTTP/1.1", b"A" * 66_000,
            f"GET /{target.token}/ HTTP/0.9".encode(), b"GET http://[/ HTTP/1.1",
        )
    )  # fmt: skip
    end = draw.choice((b"\r\n\r\n", b"\n\n", b"\r\r", b"", b"\r\n"))
    return Request(kind="request line", pieces=(line + end,), half_close=True)


def _headers(draw: Random, target: Target) -> Request:
    extra = draw.choice(
        (
            "A: b\r\n" * 300, f"A: {'b' * 70_000}\r\n", f"{'a' * 66_000}: b\r\n", "no colon\r\n",
            ": empty\r\n", " folded\r\n",
            "A:\x00\r\n", "Content-Length: 3\r\nContent-Length: 5\r\n", "Host: 127.0.0.1\r\nHost: evil\r\n", "é: ü\r\n",
            "Content-Length: 1e3\r\n", "Content-Length: -5\r\n", "Content-Length: ٣\r\n",
            "Content-Length: 99999999999\r\n",
            "Transfer-Encoding: chunked\r\n", "Upgrade: websocket\r\nConnection: Upgrade\r\n", "A: b\r" * 2000,
            "Expect: 100-continue\r\n", "Content-Encoding: gzip\r\n", "Range: bytes=0-\r\n", "Cookie: a=b\r\n",
        )
    )  # fmt: skip
    text = f"{draw.choice(('GET', 'POST'))} /{target.token}/{draw.choice(('', 'estimate'))} HTTP/1.1\r\n"
    text += f"Host: 127.0.0.1:{target.port}\r\n{extra}\r\n"
    return Request(kind="headers", pieces=(text.encode(),), half_close=True, may_succeed=True)


def _chunked(draw: Random, target: Target) -> Request:
    head = _http(target, headers={"Transfer-Encoding": "chunked"}, without=("Content-Length",))
    bomb = draw.choice(
        (
            b"FFFFFFFFFFFFFFFF\r\n",
            b"-1\r\n",
            b"5\r\n{}",
            b"0\r\n\r\n",
            b"zz\r\n",
            b"1\r\na\r\n" * 20_000,
            b"7fffffff\r\nx",
        )
    )
    both = _http(target, body=b"{}", headers={"Transfer-Encoding": "chunked"})
    return Request(kind="chunked", pieces=(head + bomb if draw.random() < 0.7 else both,), half_close=True)


def _slow(draw: Random, target: Target) -> Request:
    whole = _http(target, body=_json(GOOD))
    cut = draw.choice((1, 5, len(whole) // 2, len(whole) - 3))
    drips = tuple(whole[at : at + 1] for at in range(cut, cut + 40))
    return Request(kind="slow", pieces=(whole[:cut], *drips), pause_s=0.1, may_succeed=cut > len(whole) - 20)


def _short_body(draw: Random, target: Target) -> Request:
    whole = _http(target, body=_json(GOOD))
    return Request(kind="half a body", pieces=(whole[: -draw.randint(1, 40)],), half_close=True)


def _goes_away(draw: Random, target: Target) -> Request:
    whole = _http(target, body=_json(GOOD | {"tp": draw.choice("124")}))
    return Request(kind="goes away", pieces=(whole[: draw.choice((3, 60, len(whole)))],), leaves=True)


def _pipelined(draw: Random, target: Target) -> Request:
    page = _http(target, "GET", "", without=("Content-Type", "Content-Length"))
    return Request(kind="pipelined", pieces=(page * draw.choice((2, 50)),), half_close=True, may_succeed=True)


def _wrong_word(draw: Random, target: Target) -> Request:
    word = target.token
    wrong = draw.choice(
        (word[:-1], word + "x", word[::-1], word.swapcase(), "", "%00", word[:5] + "%2e" + word[5:], "ÿ")
    )
    path = draw.choice(("", "estimate", "static/page.js", "search"))
    return Request(kind="wrong word", pieces=(_http(target, draw.choice(("GET", "POST")), path, token=wrong),))


def _paths(draw: Random, target: Target) -> Request:
    path = "/".join(draw.choice(PIECES) for _ in range(draw.randint(1, 5)))
    succeeds = path.partition("?")[0] in ("", "static/page.js", "static/vega.min.js")
    return Request(
        kind="paths", pieces=(_http(target, "GET", path, without=("Content-Length",)),), may_succeed=succeeds
    )


def _methods(draw: Random, target: Target) -> Request:
    method, path = draw.choice(METHODS), draw.choice(("", "estimate", "static/page.js", "result/x/answer.json"))
    return Request(
        kind="methods", pieces=(_http(target, method, path, body=b"{}"),), may_succeed=method in ("GET", "POST")
    )


def _rebinding(draw: Random, target: Target) -> Request:
    if draw.random() < 0.6:
        headers = {"Host": draw.choice(HOSTS).format(port=target.port)}
    else:
        headers = {"Origin": draw.choice(ORIGINS).format(port=target.port)}
    return Request(kind="hosts", pieces=(_http(target, body=_json(GOOD), headers=headers),), half_close=True)


def _bodies(draw: Random, target: Target) -> Request:
    path = draw.choice(("estimate", "search", "result/x/export", "search/x/cancel"))
    return Request(kind="bodies", pieces=(_http(target, path=path, body=draw.choice(RAW_BODIES)),), may_succeed=True)


def _types(draw: Random, target: Target) -> Request:
    kind = draw.choice(
        ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json")
    )
    return Request(kind="content types", pieces=(_http(target, body=_json(GOOD), headers={"Content-Type": kind}),))


def _shapes(draw: Random, target: Target) -> Request:
    value = draw.choice(VALUES)
    body = value if draw.random() < 0.3 else {**GOOD, draw.choice(FIELDS): value}
    return Request(kind="shapes", pieces=(_http(target, body=_json(body)),), may_succeed=True)


def _fields(draw: Random, target: Target) -> Request:
    body = {**GOOD, draw.choice(FIELDS): draw.choice(TEXTS)}
    if draw.random() < 0.3:
        body |= {draw.choice(FIELDS): draw.choice(TEXTS)}
    return Request(kind="fields", pieces=(_http(target, body=_json(body)),), may_succeed=True)


def _unknown(draw: Random, target: Target) -> Request:
    body = {**GOOD, draw.choice(UNKNOWN): draw.choice(TEXTS)}
    return Request(kind="unknown fields", pieces=(_http(target, body=_json(body)),), may_succeed=True)


def _configs(draw: Random, target: Target) -> Request:
    config = dict(CONFIG)
    for _ in range(draw.randint(1, 3)):
        config[draw.choice([*CONFIG, "auto_map", "_name_or_path", "quantization_config", "architectures"])] = (
            draw.choice(
                (*VALUES, *TEXTS, 10**9, 10**18, 2**63, 1e-300, 3, "trust_remote_code", {"AutoConfig": "canary.make"})
            )
        )
    text = draw.choice(
        (json.dumps(config), "{" * 5000, json.dumps({"a": [[[[]]]] * 500}), "[" * 200 + "]" * 200, "null")
    )
    values = {"config": text, "cluster": "h100:1x8", "tp": draw.choice(("1", "2"))}
    return Request(kind="configs", pieces=(_http(target, body=_json(values)),), may_succeed=True)


def _floods(draw: Random, target: Target) -> Request:
    size = draw.choice((256 * 1024, 256 * 1024 + 1, 3_000_000))
    body = b'{"config": "' + b"x" * (size - 14) + b'"}'
    return Request(kind="floods", pieces=(_http(target, body=body),), may_succeed=size <= 256 * 1024)


def _results(draw: Random, target: Target) -> Request:
    name = draw.choice(("0" * 16, "..", "%00", "x" * 5000, "None", "*", "0", "-1"))
    method, path = draw.choice(
        (
            ("GET", "search/{}"),
            ("GET", "result/{}/report.html"),
            ("POST", "result/{}/export"),
            ("POST", "search/{}/cancel"),
        )
    )
    body = _json({"to": draw.choice((*TEXTS, 3, None, []))})
    return Request(kind="results", pieces=(_http(target, method, path.format(name), body=body),))


MAKERS: dict[str, Maker] = {
    "request line": _broken_lines,
    "headers": _headers,
    "chunked": _chunked,
    "slow": _slow,
    "half a body": _short_body,
    "goes away": _goes_away,
    "pipelined": _pipelined,
    "wrong word": _wrong_word,
    "paths": _paths,
    "methods": _methods,
    "hosts": _rebinding,
    "bodies": _bodies,
    "content types": _types,
    "shapes": _shapes,
    "fields": _fields,
    "unknown fields": _unknown,
    "configs": _configs,
    "floods": _floods,
    "results": _results,
}
"""How requests of each kind are made."""
