"""A Python without a GIL goes on without one when the package is imported: `make test-no-gil`."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

import pytest

_PROGRAM = """
import sys
import pybatcher
pybatcher.Engine
with pybatcher.BlockingBatcher(n_threads=1) as batcher:
    print(len(batcher.generate("Once upon", max_tokens=4).token_ids))
sys.exit(sys._is_gil_enabled())
"""


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has a GIL in any case"
)
def test_the_package_and_all_it_imports_leave_the_gil_off() -> None:
    # Python says by a warning which module brings the GIL back.
    command = [sys.executable, "-W", "error", "-c", _PROGRAM]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (answer.returncode, answer.stdout.split()) == (0, ["4"]), answer.stderr
