"""Large pages behind results: asked for where there is something to gain, unless NumPy must not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("numba")

SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")

CODE = """
import refocal, torch
z = torch.randn(1 << 14, 64)  # 4 MiB
out = refocal.log_psi(z, 2.0)
inside, flags = out.data_ptr() + out.nbytes // 2, ""
for line in open("/proc/self/smaps"):
    first, _, rest = line.partition("-")
    if rest and " " in rest and all(c in "0123456789abcdef" for c in first):
        here = int(first, 16) <= inside < int(rest.split()[0], 16)
    elif here and line.startswith("VmFlags"):
        print("hg" in line.split())
print(torch.allclose(out.exp().sum(1), torch.ones(len(z))))
"""


@pytest.mark.skipif(not SWITCH.exists() or "[never]" in SWITCH.read_text(), reason="no large pages here")
@pytest.mark.parametrize("switch", ["1", "0"])
def test_results_ask_for_large_pages_unless_numpy_must_not(switch):
    command = ["env", f"NUMPY_MADVISE_HUGEPAGE={switch}", sys.executable, "-c", CODE]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall("True|False", out) == [str(switch == "1"), "True"]
