"""Run a sidecar and measure its event loop's lag in the serving process.

    python -m bench.watched_server '{"socket": "/run/user/1000/p.sock", "n_ctx": 4096}'

serves like `pybatcher serve` until SIGTERM. Then it prints percentiles of the lag as JSON. At a
SIGHUP it also reads the file options.toml beside the socket, if there is one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from bench.common.histogram import TimeHistogram
from bench.serving.process_watch import watch_lag
from pybatcher.sidecar.front.logs import set_up_logs
from pybatcher.sidecar.front.loops import run
from pybatcher.sidecar.front.serve_config import ServeConfig, read_config
from pybatcher.sidecar.front.server import Server
from pybatcher.sidecar.front.worker_spec import WorkerSpec

_OWN = {field.name for field in fields(ServeConfig)}


async def serve(arguments: dict[str, Any], lag: TimeHistogram) -> int:
    """Run the server; return its exit status."""
    config = ServeConfig(**{name: arguments.pop(name) for name in _OWN & arguments.keys()})
    set_up_logs(config.log_format, config.log_level)
    specs = {"": WorkerSpec().changed(arguments)}
    options = Path(config.socket or ".").with_name("options.toml")

    def read() -> tuple[dict[str, WorkerSpec], ServeConfig]:
        if options.exists():
            read_config(options, regular_only=True)
        return specs, config

    server = Server(specs, config, read)
    watch = asyncio.create_task(watch_lag(lag))
    try:
        return await server.run()
    finally:
        watch.cancel()


def main() -> None:
    lag = TimeHistogram()
    status = run(serve(json.loads(sys.argv[1]), lag))
    print(json.dumps(lag.percentiles()))
    sys.exit(status)


if __name__ == "__main__":
    main()
