import asyncio
import contextlib

import pytest

from moldau.network import HttpAnswer, HttpServer


def broken():
    raise RuntimeError("oh")


PAGES = {
    "/metrics": lambda: HttpAnswer(b"up 1\n"),
    "/health": lambda: HttpAnswer(b'{"ready": false}', "application/json", 503),
    "/broken": broken,
}


async def until_the_end(reader):
    """Return the bytes that arrive before the connection ends. The connection may end with a reset, depending
    on the side that closes it first."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := await reader.read(65536):
            found += piece
    return found


def talk(*requests, **options):
    async def scenario():
        server = HttpServer(PAGES, "127.0.0.1", 0, **options)
        port = await server.start()
        answers = []
        for request in requests:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            answers.append(await asyncio.wait_for(until_the_end(reader), 60))
            writer.close()
        await server.stop()
        return answers

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("request_bytes", "first_line", "body"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK", b"up 1\n"),
        (b"GET /metrics?name=a HTTP/1.0\n\n", b"HTTP/1.1 200 OK", b"up 1\n"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK", b""),
        (b"GET /health HTTP/1.1\r\n\r\n", b"HTTP/1.1 503 Service Unavailable", b'{"ready": false}'),
        (b"GET /what HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 Not Found", b"/metrics"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed", b"GET"),
        (b"GET /broken HTTP/1.1\r\n\r\n", b"HTTP/1.1 500 Internal Server Error", b"log"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"HTTP/1.1 400 Bad Request", b"HTTP"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 10_000, b"HTTP/1.1 431", b"too large"),
    ],
)
def test_each_request_gets_the_fitting_status_and_body(request_bytes, first_line, body):
    (answer,) = talk(request_bytes)
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(first_line)
    assert body in content
    if request_bytes.startswith(b"HEAD"):
        assert content == b""
        assert b"Content-Length: 5" in head


def test_a_silent_connection_is_closed():
    assert talk(b"GET /metr", timeout_s=0.01) == [b""]


def test_too_many_connections_are_refused():
    (answer,) = talk(b"GET /metrics HTTP/1.1\r\n\r\n", max_connections=0)
    assert b"503" in answer
