"""The HTTP server for ``/metrics`` in a process that runs jobs, for Prometheus."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from moldau.client.errors import ToolError
from moldau.metrics import CONTENT_TYPE, Meters


class MetricsServer:
    """Responds with a registry's text from a separate thread, while the ``with`` block runs. With port 0 the
    system chooses a free port."""

    def __init__(self, host: str, port: int, meters: Meters) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_GET(self) -> None:
                found = self.path.split("?", 1)[0] == "/metrics"
                body = meters.render() if found else b"only /metrics is here\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Do nothing, so that scrapes are not logged."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise ToolError(f"metrics cannot be served at {host}:{port}: {error}") from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="moldau-metrics", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
