#!/usr/bin/env bash
# Install a wheel with its base dependencies into an empty environment, away from the source, and use it.
# Then look whether the source distribution has all that the README links to.
# Usage: tests/smoke_wheel.sh dist/refocal-*.whl dist/refocal-*.tar.gz
set -euo pipefail
fail() { echo "smoke test: $*" >&2; exit 1; }

wheel=$(realpath "$1")
sdist=$(realpath "$2")
tests=$(dirname "$(realpath "$0")")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install -qq -c "$tests/../constraints.txt" "$wheel"
cd "$scratch"
unset PYTHONPATH
export PATH="$scratch/venv/bin:$PATH"

loaded=$(python -P "$tests/third_party.py" "import refocal")
[ "$loaded" = "array_api_compat numpy" ] || fail "import refocal loaded: $loaded"

python - <<'PY'
from importlib.metadata import files

import numpy as np

import refocal

installed = {str(file) for file in files("refocal")}
top = {name.split("/")[0] for name in installed} - {".."}  # ".." leads to bin/refocal
assert top == {"refocal", f"refocal-{refocal.__version__}.dist-info"}, top
data = {"published.csv", "data/registry.csv"}
assert {"refocal/py.typed", *(f"refocal/experiments/{name}" for name in data)} <= installed
assert {f"refocal/report/page.{kind}" for kind in ("html", "css", "js")} <= installed

posterior = refocal.psi(np.array([[0.5, 0.3, 0.2]]), 2.0)
assert posterior.shape == (1, 3), posterior
assert abs(posterior.sum() - 1) < 1e-12, posterior
assert posterior[0, 0] > 0.5, posterior  # focal scores above 1/2 are always too low
PY

refocal --help >/dev/null
python -m refocal --version >/dev/null

# A part that needs an extra says which, in one line, with exit code 2.
status=0
message=$(refocal demo 2>&1) || status=$?
[ "$status" = 2 ] || fail "refocal demo without matplotlib: exit code $status, expected 2: $message"
[ "$(wc -l <<<"$message")" = 1 ] || fail "refocal demo without matplotlib: more than one line: $message"
[[ "$message" == *"pip install matplotlib"* ]] || fail "refocal demo without matplotlib: $message"

python - "$sdist" <<'PY'
import re
import sys
import tarfile

with tarfile.open(sys.argv[1]) as archive:
    names = {name.partition("/")[2] for name in archive.getnames()}
    (readme,) = (name for name in archive.getnames() if name.count("/") == 1 and name.endswith("/README.md"))
    text = archive.extractfile(readme).read().decode()
links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
missing = [link for link in links if not any(f"{name}/".startswith(f"{link}/") for name in names)]
assert links
assert not missing, f"the source distribution lacks {missing}"
PY

echo "smoke test: $(basename "$wheel") works with its base dependencies alone"
