"""The page's server answers this machine's pages alone, refuses the rest with a sentence, and stays up."""

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import explore_fuzz
import pytest

from structmax.explore import server as served
from structmax.explore.answers import answer
from structmax.explore.gradients import gradients
from structmax.explore.request import checked
from structmax.explore.server import BODY, Handler, Server
from structmax.explore.sweep import sweep
from structmax.explore.warming import example

ASKED = {**example("simplex"), "seed": 1}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(
    server: Server, path: str = "/answer", body: Any = ASKED, method: str = "POST", **headers: str
) -> tuple[int, Any, HTTPResponse]:
    """Status, JSON and response."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, content, (JSON if body is not None else {}) | given)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    is_json = response.headers.get_content_type() == "application/json" and method != "HEAD"
    return response.status, json.loads(text) if is_json else text, response


def send(server: Server, request: bytes) -> bytes:
    """The bytes that come back for these, the last of which is the end."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        # it may be refused before all was sent; the answer is there
        with suppress(OSError):
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        return received(connection)


def received(connection: socket.socket) -> bytes:
    """All that comes until the connection is closed."""
    got = b""
    with suppress(OSError):
        while piece := connection.recv(2**16):
            got += piece
    return got


def test_answers_are_those_of_the_functions(server: Server) -> None:
    for path, function in (("/answer", answer), ("/gradients", gradients), ("/sweep", sweep)):
        status, found, response = ask(server, path)
        assert status == 200
        assert found == json.loads(json.dumps(function(checked(ASKED))))
        assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/", "/page.css", "/page.js", "/state.js", "/grid.js", "/panels.js", "/chart.js", "/kinds"]
)
def test_pages_are_read_with_their_guards(server: Server, path: str) -> None:
    status, found, response = ask(server, path, None, "GET")
    assert status == 200
    assert found
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert "unsafe-inline" not in response.headers["Content-Security-Policy"].replace(
        "style-src-attr 'unsafe-inline'", ""
    )
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "http://" not in str(found).replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in str(found)


def test_it_listens_on_this_machine_alone(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_its_own_names_are_accepted(server: Server, name: str) -> None:
    host = f"{name}:{server.server_port}"
    assert ask(server, Host=host)[0] == 200
    assert ask(server, Host=host, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize("path", ["/", "/answer"])
@pytest.mark.parametrize("host", ["elsewhere", "127.0.0.1", "localhost", "elsewhere:{port}", "127.0.0.1:{port}.", ""])
def test_other_hosts_are_refused(server: Server, host: str, path: str) -> None:
    body, method = (None, "GET") if path == "/" else (ASKED, "POST")
    status, found, _ = ask(server, path, body, method, Host=host.format(port=server.server_port))
    assert status == 403
    assert found["error"].startswith(f"The header Host should be 127.0.0.1:{server.server_port} or localhost:")


@pytest.mark.parametrize(
    "origin", ["http://elsewhere", "null", "https://127.0.0.1:{port}", "http://localhost:{port}", "http://127.0.0.1"]
)
def test_other_origins_are_refused(server: Server, origin: str) -> None:
    for path, body, method in (("/", None, "GET"), ("/answer", ASKED, "POST")):
        status, found, _ = ask(server, path, body, method, Origin=origin.format(port=server.server_port))
        assert status == 403
        assert found == {"error": f"The header Origin should be http://127.0.0.1:{server.server_port}, or left out."}


@pytest.mark.parametrize(
    ("path", "method", "status", "allowed"),
    [
        ("/nothing", "GET", 404, None),
        ("/nothing", "POST", 404, None),
        ("/page.html", "GET", 404, None),
        ("/../server.py", "GET", 404, None),
        ("/answer", "GET", 405, "POST"),
        ("/sweep", "PUT", 405, "POST"),
        ("/", "POST", 405, "GET"),
        ("/", "HEAD", 405, "GET"),
        ("/", "OPTIONS", 405, "GET"),
        ("/", "GARBAGE", 405, "GET"),
    ],
)
def test_other_paths_and_methods_are_refused(
    server: Server, path: str, method: str, status: int, allowed: str | None
) -> None:
    found, _, response = ask(server, path, ASKED if method == "POST" else None, method)
    assert found == status
    assert response.headers["Allow"] == allowed


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"{", {}, 400, "The body should be JSON"),
        (b"[" * 50000, {}, 400, "The body should be JSON"),
        (b"\xff", {}, 400, "The body should be JSON"),
        (b"1" * 9000, {}, 400, "The body should be JSON"),
        (b'{"kind": NaN}', {}, 400, "Numbers should be finite, but one is NaN"),
        (b"[1]", {}, 400, "should be an object"),
        ({"kind": "cube"}, {}, 400, "`kind` should be one of"),
        (b" " * (BODY + 1), {}, 413, "at most 65536 bytes"),
        (ASKED, {"Content_Type": "text/plain"}, 415, "should be application/json"),
        (ASKED, {"Transfer_Encoding": "chunked"}, 411, "not Transfer-Encoding"),
        (ASKED, {"Content_Length": "-1"}, 400, "one whole number"),
        (ASKED, {"Content_Length": "٣".encode().decode("latin-1")}, 400, "one whole number"),
        (ASKED, {"Content_Length": "9" * 6000}, 413, "at most"),
        (ASKED, {"Expect": "100-continue"}, 417, "without the header Expect"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_other_bodies_are_refused(server: Server, body: Any, headers: dict[str, str], status: int, words: str) -> None:
    found, said, response = ask(server, body=body, **headers)
    assert found == status
    assert words in said["error"]
    assert response.headers["Connection"] == "close"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"\x16\x03\x01 garbage\r\n\r\n", 400),
        (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 70000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n\r\n", 403),
        (b"POST /answer HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\r\n", 411),
        (b"POST /answer HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{", 400),
        (b"POST /answer HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\n{}", 415),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_hardly_http_gets_a_status(server: Server, request_bytes: bytes, status: int) -> None:
    got = send(server, request_bytes.replace(b"{host}", server.hosts[0].encode()))
    assert got.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(got.partition(b"\r\n\r\n")[2])["error"].startswith("The ")


def test_a_silent_connection_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "timeout", 0.05)
    host = server.hosts[0]
    half = f"POST /answer HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{{"
    for said, status in ((b"", b""), (b"GET / HT", b""), (half.encode(), b"HTTP/1.1 408 ")):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
            connection.sendall(said)
            got = received(connection)
            assert got.startswith(status)
            assert bool(got) == bool(status)


def test_connections_beyond_the_bound_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "CONNECTIONS", 2)
    monkeypatch.setattr(Handler, "timeout", None)
    with Server() as small:
        thread = threading.Thread(target=small.serve_forever)
        thread.start()
        held = [HTTPConnection("127.0.0.1", small.server_port, timeout=60) for _ in range(2)]
        for connection in held:
            connection.request("GET", "/kinds")
            assert connection.getresponse().read()
        assert send(small, b"GET / HTTP/1.1\r\n\r\n") == b""
        for connection in held:
            connection.close()
        small.shutdown()
        thread.join()


def test_a_connection_serves_many_requests(server: Server) -> None:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    for _ in range(3):
        connection.request("POST", "/answer", json.dumps(ASKED), JSON)
        response = connection.getresponse()
        assert response.status == 200
        assert json.loads(response.read())["points"]
        assert not response.will_close
    connection.close()


def test_a_defect_is_told_on_the_terminal_and_not_on_the_page(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(served.ASKED, "/answer", lambda asked: 1 / 0)
    status, found, _ = ask(server)
    assert status == 500
    assert found == {"error": "The library could not answer this. The terminal says where it failed."}
    assert "ZeroDivisionError" in capsys.readouterr().err


def fuzz(server: Server, seed: int, count: int) -> dict[int, int]:
    """How often each status came back: a status of 2xx or 4xx with JSON, whatever was sent."""
    draw, statuses = random.Random(seed), dict[int, int]()
    for _ in range(count):
        request = explore_fuzz.request(draw, server.hosts[0])
        got = send(server, request)
        if not got:
            # nothing was said, or not even a line
            assert not request
            continue
        head, _, content = got.partition(b"\r\n\r\n")
        status = int(head.split(maxsplit=2)[1])
        assert head.startswith(b"HTTP/1.1 "), request
        assert status // 100 in (2, 4), request
        assert b"Traceback" not in content
        assert b'File "' not in content
        if status != 200 or b"application/json" in head:
            # of several requests on one connection, the first answer
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            if content[:length]:
                found = json.loads(content[:length], parse_constant=pytest.fail)
                assert status == 200 or (set(found) == {"error"} and found["error"].endswith("."))
        statuses[status] = statuses.get(status, 0) + 1
    is_well = ask(server)[:2] == (200, json.loads(json.dumps(answer(checked(ASKED)))))
    assert is_well
    return statuses


def test_odd_requests_are_answered(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    statuses = fuzz(server, 0, 400)
    assert {200, 400, 403, 405, 411, 413, 415} <= set(statuses)
    assert capfd.readouterr().err == ""


@pytest.mark.thorough
def test_ten_thousand_odd_requests_are_answered(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    assert sum(fuzz(server, 1, 10_000).values()) > 9_900
    assert capfd.readouterr().err == ""
