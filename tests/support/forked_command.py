"""``sluice`` as a program on the path, whose work a fork does that has imported everything (``tests.support.zygote``).

Its first argument is the socket of a ``tests.support.zygote.ForkedCommand``. It has the standard streams, the directory
and the environment of the caller, passes signals on and ends as the fork does; the fork ends with it. It imports
little, since each command of a page runs it.
"""

from __future__ import annotations

import _socket
import array
import json
import os
import signal
import sys


def main() -> int:
    path, *arguments = sys.argv[1:]
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    line.connect(path)
    request = {"arguments": arguments, "environ": dict(os.environ), "directory": os.getcwd()}
    streams = array.array("i", [0, 1, 2])
    line.sendmsg(
        [json.dumps(request).encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)]
    )
    pid = _number(line)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    status = _number(line)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _number(line: _socket.socket) -> int:
    return int.from_bytes(line.recv(4), "big", signed=True)


if __name__ == "__main__":
    sys.exit(main())
