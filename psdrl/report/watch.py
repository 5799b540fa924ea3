"""`psdrl report --watch`: the page on the loopback interface, made again while runs go on."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console

from psdrl.errors import UserError
from psdrl.report.build import build
from psdrl.report.outcomes import state_of_files

HOST = "127.0.0.1"


class Server(ThreadingHTTPServer):
    """Serves the report and, as `stamp`, the number of times that it was made."""

    def __init__(self, out: Path, port: int) -> None:
        self.out, self.stamp = out, 0
        super().__init__((HOST, port), Handler)


class Handler(SimpleHTTPRequestHandler):
    """Files of the report, for browsers on this machine that asked for this machine."""

    server: Server

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=str(arguments[2].out))

    def do_GET(self) -> None:
        """A page of another site may point its own name at 127.0.0.1: it is not answered."""
        host = (self.headers.get("Host") or "").partition(":")[0]
        if host not in (HOST, "localhost"):
            self.send_error(403, "only this machine")
        elif self.path.partition("?")[0] == "/stamp":
            data = str(self.server.stamp).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        else:
            super().do_GET()

    def end_headers(self) -> None:
        """Nothing is kept by the browser: the next report has the same names."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """The terminal is for people."""


@contextlib.contextmanager
def serving(out: Path, port: int) -> Iterator[Server]:
    """A server in a thread of its own."""
    try:
        server = Server(out, port)
    except OSError as error:
        raise UserError(f"--port {port} cannot be used ({error.strerror}): use another, or 0 for any.") from None
    thread = threading.Thread(target=server.serve_forever, name="report", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def watch(
    paths: Iterable[Path], out: Path, port: int, every: float, console: Console, steps: int | None = None
) -> None:
    """Until Ctrl-C: make the report again whenever the files of a run have changed. What goes wrong after the first
    time is said once, and the page stays as it was."""
    paths = list(paths)
    seen, said = state_of_files(paths), ""
    build(paths, out, live=True, steps=steps)
    with serving(out, port) as server, contextlib.suppress(KeyboardInterrupt):
        _say(console, f"http://{HOST}:{server.server_port}/ (Ctrl-C ends it)")
        while True:
            time.sleep(every)
            try:
                now = state_of_files(paths)
                if now != seen:
                    build(paths, out, live=True, steps=steps)
                    seen, said = now, ""
                    server.stamp += 1
            except UserError as error:
                if str(error) != said:
                    said = str(error)
                    _say(console, f"notice       {said}")


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)
