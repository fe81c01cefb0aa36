"""The page's server: HTTP on this machine alone, and its guards.

A page from elsewhere must not reach it: requests with another Host (a name that was made to point here) or another
Origin are refused. What is sent is JSON of a bounded size, checked by `request`, computed one at a time, and answered
by JSON: a sentence and a status of 4xx for what is not acceptable.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, NoReturn

from structmax.explore.answers import answer
from structmax.explore.gradients import gradients
from structmax.explore.kinds import described
from structmax.explore.request import RANGES, Asked, Unacceptable, checked
from structmax.explore.sweep import sweep
from structmax.plots import svg

ADDRESS = "127.0.0.1"
# Bytes of a request, and how many connections there may be at a time.
BODY, CONNECTIONS = 2**16, 64
# Seconds that a connection may be silent: before its request is there, and after it was refused. How many pieces of
# what is refused are read.
SILENCE, LINGER, DROPPED = 10.0, 0.2, 64
HEADERS = {
    # styles of single shapes are in the drawings
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
    "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SCRIPTS = ("page.js", "state.js", "grid.js", "panels.js", "chart.js")
ASKED: dict[str, Callable[[Asked], dict[str, Any]]] = {"/answer": answer, "/gradients": gradients, "/sweep": sweep}


@cache
def _pages() -> dict[str, tuple[str, bytes]]:
    """What can be read: type and bytes by path."""

    def text(name: str) -> str:
        return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")

    style = svg.resource("page.css") + svg.resource("drawing.css") + text("page.css")
    pages = {
        "/": ("text/html", text("page.html")),
        "/page.css": ("text/css", style),
        "/kinds": ("application/json", json.dumps({"kinds": described(), "ranges": RANGES})),
        **{f"/{name}": ("text/javascript", text(name)) for name in SCRIPTS},
    }
    return {path: (f"{kind}; charset=utf-8", content.encode()) for path, (kind, content) in pages.items()}


class Refused(Exception):
    """A request that gets a status of 4xx and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """One connection, on a thread of its own."""

    server: Server
    raw_requestline: bytes
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "structmax", ""
    # an answer leaves at once, and a connection that says nothing is closed
    disable_nagle_algorithm = True
    wbufsize = -1
    timeout = SILENCE

    def do_GET(self) -> None:
        self._answer(self._read_page)

    def do_POST(self) -> None:
        self._answer(self._compute)

    def do_other(self) -> None:
        self._answer(self._refuse_method)

    do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = do_other  # noqa: N815

    def parse_request(self) -> bool:
        is_read = super().parse_request()
        # which http.server leaves without an answer
        if not is_read and not self.raw_requestline.strip():
            self.command, self.path = "", ""
            self.send_error(400)
        return is_read

    def handle_expect_100(self) -> bool:
        self.send_error(417)
        return False

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself cannot read."""
        # otherwise it would answer without a status
        self.request_version = self.protocol_version
        sentences = {
            408: "The request should come without pauses.",
            414: "The address should be shorter.",
            417: "The request should come without the header Expect.",
            431: "The headers should be shorter.",
            501: "The method should be GET or POST.",
        }
        status = {501: 405, 505: 400}.get(code, code)
        self._refuse(Refused(status, sentences.get(code, "The request should be one of HTTP/1.1.")))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a drag is a hundred requests."""

    def _answer(self, respond: Callable[[], tuple[str, bytes]]) -> None:
        try:
            self._guard()
            kind, content = respond()
        except Refused as refused:
            self._refuse(refused)
        except TimeoutError:
            self.send_error(408)
        except Exception:
            # a defect of ours: the terminal is told where, the page only that
            traceback.print_exc()
            self._refuse(Refused(500, "The library could not answer this. The terminal says where it failed."))
        else:
            self._send(200, kind, content)

    def _guard(self) -> None:
        """The request is meant for this server, and does not come from a page of another."""
        if self.request_version == "HTTP/0.9":
            self.request_version = self.protocol_version
            raise Refused(400, "The request should be one of HTTP/1.1.")
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            raise Refused(403, f"The header Host should be {' or '.join(self.server.hosts)}.")
        origins = self.headers.get_all("Origin", [])
        if origins and origins != [f"http://{hosts[0]}"]:
            raise Refused(403, f"The header Origin should be http://{hosts[0]}, or left out.")

    def _read_page(self) -> tuple[str, bytes]:
        if self.path in _pages():
            if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
                raise Refused(400, "A GET should have no body.")
            return _pages()[self.path]
        self._refuse_method()

    def _refuse_method(self) -> NoReturn:
        if self.path in ASKED:
            raise Refused(405, f"{self.path} should be asked by POST.")
        if self.path in _pages():
            raise Refused(405, f"{self.path} should be read by GET.")
        raise Refused(404, f"There should be one of {', '.join([*_pages(), *ASKED])} here.")

    def _compute(self) -> tuple[str, bytes]:
        if self.path not in ASKED:
            self._refuse_method()
        body = self._body()
        try:
            asked = checked(json.loads(body, parse_constant=_no_number))
        except Unacceptable as unacceptable:
            raise Refused(400, str(unacceptable)) from None
        except (ValueError, RecursionError):
            raise Refused(400, "The body should be JSON in UTF-8, of few levels, with finite numbers.") from None
        with self.server.computing:
            found = ASKED[self.path](asked)
        return "application/json; charset=utf-8", json.dumps(found, allow_nan=False).encode()

    def _body(self) -> bytes:
        if self.headers.get_content_type() != "application/json" or "Content-Type" not in self.headers:
            raise Refused(415, "The header Content-Type should be application/json.")
        if "Transfer-Encoding" in self.headers:
            raise Refused(411, "The request should have the header Content-Length, not Transfer-Encoding.")
        lengths = self.headers.get_all("Content-Length", [])
        if not lengths:
            raise Refused(411, "The request should have the header Content-Length.")
        if len(lengths) > 1 or not (lengths[0].isascii() and lengths[0].isdigit()):
            raise Refused(400, "The header Content-Length should be one whole number.")
        # compared by its digits: a number of thousands of them is not read
        if len(lengths[0]) > len(str(BODY)) or int(lengths[0]) > BODY:
            raise Refused(413, f"The body should have at most {BODY} bytes.")
        body = self.rfile.read(int(lengths[0]))
        if len(body) < int(lengths[0]):
            raise Refused(400, "The body should be as long as Content-Length says.")
        return body

    def _refuse(self, refused: Refused) -> None:
        # what is left of the request is not read, so the connection cannot be used again
        self.close_connection = True
        self._send(refused.status, "application/json; charset=utf-8", json.dumps({"error": str(refused)}).encode())
        self._drop()

    def _drop(self) -> None:
        """Reads what is still on its way: closed before, the connection would be reset, and the answer lost."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(LINGER)
            for _ in range(DROPPED):
                if not self.connection.recv(BODY):
                    break

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if status == 405:
            self.send_header("Allow", "POST" if self.path in ASKED else "GET")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()


def _no_number(name: str) -> NoReturn:
    raise Unacceptable(f"Numbers should be finite, but one is {name}.")


class Server(ThreadingHTTPServer):
    """Listens at once; `serve_forever` answers.

    Args:
        port: where to listen; 0 takes a free one.
    """

    daemon_threads = True
    # a port in use is an error, not shared
    allow_reuse_port = False

    def __init__(self, port: int = 0) -> None:
        super().__init__((ADDRESS, port), Handler)
        self.computing = threading.Lock()
        self._free = threading.BoundedSemaphore(CONNECTIONS)

    @property
    def hosts(self) -> tuple[str, str]:
        """What a browser on this machine calls it."""
        return f"{ADDRESS}:{self.server_port}", f"localhost:{self.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.hosts[0]}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """On a thread, unless too many are busy: then the connection is closed."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is no news; anything else is, on the terminal."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)
