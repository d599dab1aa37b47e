"""A port that leads to another one, so that a test decides when a server can be reached, and cuts its connections."""

from __future__ import annotations

import contextlib
import socket
from threading import Lock, Thread


class Forwarder:
    """Listens on ``port`` of 127.0.0.1 while it is open; each connection goes on to ``target``."""

    def __init__(self, port: int, target: int) -> None:
        self.port, self.target = port, target
        self._lock = Lock()
        self._listener: socket.socket | None = None
        self._sockets: list[socket.socket] = []

    def open(self) -> None:
        """Let connections through."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Refuse connections, and end those there are."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut_connections()

    def cut_connections(self) -> None:
        """End the connections there are; new ones are let through."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                if self._listener is not listener:
                    return
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._sockets += (near, far)
            Thread(target=self._join, args=(near, far), daemon=True).start()

    def _join(self, near: socket.socket, far: socket.socket) -> None:
        with near, far:
            back = Thread(target=self._pass_on, args=(far, near), daemon=True)
            back.start()
            self._pass_on(near, far)
            back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
