"""What tests of listening sockets start: `python listening_double.py DEED ...`."""

from __future__ import annotations

import os
import sys

from pybatcher import ConfigError
from pybatcher.sidecar.front.listening import inherited_socket, open_socket


def main() -> None:
    deed = sys.argv[1]
    if deed == "open":  # when told to: several start at once
        sys.stdin.readline()
        try:
            listening = open_socket(sys.argv[2], backlog=5)
        except ConfigError as error:
            print(f"refused: {error}", flush=True)
            return
        print("listens", flush=True)
        sys.stdin.readline()
        listening.close()
    if deed == "inherit":  # the descriptor named last becomes 3
        os.dup2(int(sys.argv[2]), 3)
        try:
            sock = inherited_socket(
                {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}, os.getpid()
            )
        except ConfigError as error:
            print(f"refused: {error}", flush=True)
            sock = None
        os.fstat(3)  # still open, also where it was refused: not ours to close
        if sock is None:
            return
        assert sock.fileno() == 3
        assert not sock.getblocking()
        assert not os.get_inheritable(3)
        sock.setblocking(True)
        connection, _ = sock.accept()
        with connection:
            connection.sendall(b"inherited")


if __name__ == "__main__":
    main()
