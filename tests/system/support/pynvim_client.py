"""What a client written for another server gets from ours: pynvim's session, as it comes.

python pynvim_client.py SOCKET      prints what it got, as JSON
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pynvim.msgpack_rpc import Session, socket_session

OPTS = {"max_tokens": 8, "ignore_eos": True}


class RefusedError(Exception):
    """What the server says is wrong."""


def stream(session: Session) -> dict[str, Any]:
    result = session.request("generate", "Once", {**OPTS, "stream": True, "id": "s"})
    deltas = []
    while not deltas or "finish_reason" not in deltas[-1][1]:
        message = session.next_message()
        assert message is not None
        assert (message.type, message.name) == ("notification", "delta")
        deltas.append(message.args)
    return {"result": result, "deltas": deltas}


def cancel(session: Session) -> dict[str, Any]:
    """Two requests at once: an endless one, and from its first delta on one that cancels it."""
    got: dict[str, Any] = {"deltas_after": 0}

    def generate() -> None:
        opts = {"max_tokens": 7000, "ignore_eos": True, "stream": True, "id": "c"}
        try:
            session.request("generate", "Once", opts)
        except RefusedError as refused:
            got["error"] = refused.args[0]
        got["again"] = session.request("cancel", "c")
        session.stop()

    def heard(name: str, args: list[Any]) -> None:
        if "cancelled" not in got:
            got["cancelled"] = None
            got["cancelled"] = session.request("cancel", "c")
        elif "error" in got:
            got["deltas_after"] += 1

    session.run(lambda name, args: None, heard, generate)
    return got


def refuse(session: Session) -> Any:
    try:
        session.request("generate", "Once", {"max_tokens": 0})
    except RefusedError as refused:
        return refused.args[0]


def main() -> None:
    session = socket_session(sys.argv[1])
    session.error_wrapper = RefusedError
    got = {
        "hello": session.request("hello", {"client": "pynvim"}),
        "generate": session.request("generate", "Once", OPTS),
        "stream": stream(session),
        "cancel": cancel(session),
        "refused": refuse(session),
        "health": session.request("health"),
        "bytes": session.request(b"tokenize", b"Once"),
    }
    session.close()
    print(json.dumps(got))


main()
