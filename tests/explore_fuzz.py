"""Requests that nobody should send, as bytes, drawn from a seed."""

import json
import random
from typing import Any

from structmax.explore.kinds import KINDS
from structmax.explore.warming import example

JUNK: list[Any] = [
    None, True, -1, 0, 13, 1e308, -0.0, 10**400, "", "x", "x" * 5000, "\ud800", "\0", "<script>", [], [[]], {},
    {"a": []}, [None] * 200, [[0, 0]] * 300, [1e999], "NaN", "__proto__",
]  # fmt: skip
TEXTS = [
    b"", b"{", b"null", b"NaN", b"[" * 60000, b'{"a":' * 12000, b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}",
    b'"\xed\xa0\x80"', b"1" * 60000, b"-", b"1e99999", b'{"kind":"chain","kind":1}', b"[Infinity]", b"\x00" * 100,
    b'{"kind": "simplex", }',
]  # fmt: skip
PATHS = [
    "/answer", "/sweep", "/", "/page.js", "/kinds", "/../../etc/passwd", "/%2e%2e/%00", "//answer", "/answer?x=1", "*",
    "http://elsewhere/answer", "/" + "a" * 70000, "/answer#x", "\\answer", "/äö",
]  # fmt: skip
METHODS = ["GET", "POST", "PUT", "HEAD", "OPTIONS", "get", "GARBAGE", "", "PO ST", "\x00", "TRACE", "CONNECT"]
VERSIONS = ["HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/9.9", "HTTP/1.x", "HTTP", "", "FTP/1.1", "HTTP/1.1.1"]
LENGTHS = ["-1", "+5", "0x10", "1e3", "99999999", "9" * 5000, "", " ", "٣", "1, 1", "70000"]
TYPES = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "",
    "application/json;;;=",
    "x",
]
ORIGINS = ["http://elsewhere", "null", "https://127.0.0.1", "", "http://127.0.0.1:1", "file://"]
ODD = [
    "Transfer-Encoding: chunked", "Expect: 100-continue", "Connection: upgrade", "X: " + "y" * 70000, "no colon",
    ": none", " folded: x", "X\x00Y: z", "Content-Length: 3", "Host: elsewhere", "Cookie: \xff", "Upgrade: websocket",
]  # fmt: skip


def mutated(value: Any, draw: random.Random) -> Any:
    """The value with one node of it, somewhere, replaced by junk, left out, or repeated."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        if draw.random() < 0.1:
            return {other: kept for other, kept in value.items() if other != key}
        if draw.random() < 0.1:
            return {**value, draw.choice(["x", "Kind", "__class__", ""]): draw.choice(JUNK)}
        return {**value, key: mutated(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        if draw.random() < 0.2:
            return value[:place] + value[place + 1 :]
        if draw.random() < 0.1:
            return value + value[place:]
        return [*value[:place], mutated(value[place], draw), *value[place + 1 :]]
    return draw.choice(JUNK)


def body(draw: random.Random) -> bytes:
    kind = draw.random()
    if kind < 0.15:
        return draw.choice(TEXTS)
    if kind < 0.25:
        return draw.randbytes(draw.randrange(300))
    sent: Any = {**example(draw.choice(list(KINDS))), "temperature": 1.0, "wanted": [], "seed": 1}
    for _ in range(draw.choice([1, 1, 2, 5])):
        sent = mutated(sent, draw)
    text = json.dumps(sent).encode()
    if kind < 0.4:
        return text[: draw.randrange(len(text) + 1)]
    if kind < 0.5:
        place = draw.randrange(len(text) + 1)
        return text[:place] + draw.randbytes(3) + text[place:]
    return text


def request(draw: random.Random, host: str) -> bytes:
    """A whole request: half of the time only its body is odd."""
    content, odd = body(draw), draw.random() < 0.5

    def pick(usual: str, others: list[str], often: float = 0.2) -> str:
        return draw.choice(others) if odd and draw.random() < often else usual

    if odd and draw.random() < 0.05:
        return draw.choice(
            [b"", b"\r\n", b"\r\n\r\n", b"\n" * 50, b"\x16\x03\x01\x02", draw.randbytes(200), b"a" * 70000]
        )
    line = " ".join([pick("POST", METHODS), pick("/answer", PATHS), pick("HTTP/1.1", VERSIONS)])
    lines = [line, f"Host: {pick(host, ['elsewhere', '', host.upper(), '127.0.0.1', 'localhost:1', host + '.'])}"]
    lines.append(f"Content-Type: {pick('application/json', TYPES)}")
    lines.append(
        f"Content-Length: {pick(str(len(content)), [*LENGTHS, str(len(content) // 2), str(len(content) + 9)])}"
    )
    if odd and draw.random() < 0.2:
        lines.append(f"Origin: {draw.choice(ORIGINS)}")
    if odd and draw.random() < 0.3:
        lines.insert(draw.randrange(1, len(lines) + 1), draw.choice(ODD))
    if odd and draw.random() < 0.05:
        lines += [f"X-{i}: y" for i in range(200)]
    if odd and draw.random() < 0.1:
        lines.pop(draw.randrange(len(lines)))
    mark = draw.choice(["\n", "\r"]) if odd and draw.random() < 0.1 else "\r\n"
    return (mark.join(lines) + mark * 2).encode("utf-8", "surrogateescape") + content
