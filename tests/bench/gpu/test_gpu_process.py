from __future__ import annotations

import os
import sys
from pathlib import Path

from bench.gpu.process import Finished, run_program


def run(code: str, seconds: float, **env: str) -> Finished:
    command = [sys.executable, "-c", code]
    return run_program(command, seconds, env=os.environ | env, cwd=Path.cwd())


def test_output_errors_and_status_come_back() -> None:
    code = "import os, sys; print('{\"a\": 1}'); print('no JSON'); print('[1]'); print('{\"b'); "
    code += "sys.stderr.write(os.environ['WORD']); sys.exit(3)"
    done = run(code, 60, WORD="wrong")
    assert done.status == 3
    assert done.lines == [{"a": 1}]
    assert done.describe_end() == "ended with 3: wrong"


def test_a_program_that_hangs_is_killed_with_what_it_started() -> None:
    # The child holds the pipes: the call would not return while it lives.
    done = run("import subprocess; subprocess.run(['sleep', '1000'])", 2)
    assert done.status is None
    assert "killed" in done.describe_end()
    assert done.seconds < 900


def test_without_time_nothing_is_waited_for() -> None:
    assert run("import time; time.sleep(1000)", -1.0).status is None
