"""`bandscope top --serve`: the same screen in a web browser, by textual-serve (the extra `serve`).

Each browser window gets a screen of its own, in a process that ends with it. Whoever can open the
address sees the trace and can press keys, so it is that of this machine only, unless another host is
named; and pages of other sites, which a browser lets connect to this machine, are refused.
"""

from __future__ import annotations

import errno
import ipaddress
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bandscope.allocator.errors import ConfigError
from bandscope.tui.top.beside import PROGRAM

if TYPE_CHECKING:
    from textual_serve.server import Server

LOCAL = "localhost"


def options_of(
    path: Path | None, ascii: bool | None, refresh: float | None, told: dict[str, str | None]
) -> list[str]:
    """The command line of `bandscope top` that says this; what is None is left out."""
    said = [] if path is None else [str(path.absolute())]
    if ascii is not None:
        said.append("--ascii" if ascii else "--unicode")
    if refresh is not None:
        told = {**told, "--refresh": f"{refresh:g}"}
    for name, value in told.items():
        if value is not None:
            said += [name, value]
    return said


def command_of(arguments: Sequence[str]) -> str:
    """What is started for a browser window, for a shell."""
    return shlex.join([*PROGRAM, "top", *arguments])


def is_local(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == LOCAL


def comes_from_here(origin: str | None, asked: str | None, host: str) -> bool:
    """Whether a page is one that the server at `host` gave out: it names the address that was asked
    for; and where that is to be this machine, no other name, which may resolve to it for a while."""
    if origin is None or asked is None or urlsplit(origin).netloc != asked:
        return False
    return not is_local(host) or is_local(urlsplit(origin).hostname or "")


def make_server(arguments: Sequence[str], host: str, port: int) -> Server:
    """A server that shows `bandscope top` with these arguments; `ConfigError` without textual-serve."""
    try:
        from aiohttp import web
        from textual_serve.server import Server
    except ImportError as error:
        raise ConfigError(
            "--serve needs the package textual-serve, which is not installed; install it with `pip "
            "install 'bandscope[serve]'`, or leave --serve out"
        ) from error

    class TopServer(Server):
        """Speaks to its own pages only."""

        async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
            """Refuse the pages of other sites."""
            headers = request.headers
            if not comes_from_here(headers.get("Origin"), headers.get("Host"), host):
                raise web.HTTPForbidden(text="this screen is shown on its own page only")
            return await super().handle_websocket(request)

        async def on_startup(self, app: Any) -> None:
            """Say where it is."""
            self.console.print(f"bandscope top is served at {self.public_url}; Ctrl-C ends it")
            if not is_local(host):
                self.console.print(f"everybody who can reach {host} can see it and press its keys")

        def initialize_logging(self) -> None:
            """No line per request."""

    return TopServer(command_of(arguments), host=host, port=port, title="bandscope top")


def serve(arguments: Sequence[str], host: str, port: int) -> None:
    """Serve until Ctrl-C."""
    server = make_server(arguments, host, port)
    try:
        server.serve()
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
            raise
        raise ConfigError(
            f"port {port} of {host} cannot be used ({error.strerror}); choose another with --port"
        ) from error
