"""What tests of worker processes spawn: `python -m worker_double FD DEED`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType

# The guard needs nothing of the package, whose __init__ takes most of the time of this process.
_package = ModuleType("pybatcher")
_package.__path__ = [str(Path(__file__).resolve().parents[3] / "pybatcher")]
sys.modules["pybatcher"] = _package

from pybatcher.sidecar.front.guard import guard_child  # noqa: E402


def _is_no_library(descriptor: str) -> bool:
    """Return False for what newer versions of libffi keep open for ctypes: their own file."""
    path = Path("/proc/self/fd", descriptor)
    return not (path.exists() and "libffi" in path.readlink().name)


def about_itself() -> dict[str, object]:
    import calendar  # not a file of that name in the working directory

    return {
        "path": sys.path,
        "warnoptions": sys.warnoptions,
        "optimize": sys.flags.optimize,
        "calendar": calendar.__file__,
        "descriptors": sorted(map(int, filter(_is_no_library, os.listdir("/proc/self/fd")))),
        "stdin": sys.stdin.read(),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "ignored": [n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN],
        "environment": dict(os.environ),
    }


def main() -> None:
    sock, deed = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    if deed == "late":  # what it is sent before it guards itself
        sock.sendall(b"unguarded")
        sock.recv(1)
    guard_child()
    if deed == "exit":
        sys.exit(int(sys.argv[3]))
    if deed == "signal":
        os.kill(os.getpid(), int(sys.argv[3]))
    if deed == "tell":
        sock.sendall(json.dumps(about_itself()).encode())
    if deed == "deaf":  # hears no EOF
        Path(sys.argv[3]).write_text(str(os.getpid()))
        while True:
            signal.pause()
    sock.sendall(b"guarded")
    while message := sock.recv(1000):
        sock.sendall(message)


if __name__ == "__main__":
    main()
