# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: makes .venv with everything the project needs, once per change of pyproject.toml.
# GDNBENCH_PYTHON picks the interpreter (3.11 or newer), GDNBENCH_TORCH the torch requirement.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
stamp=$venv/.installed
if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ] || [ setup.py -nt "$stamp" ]; then
  echo "setting up $venv (first run: a few minutes, about 2 GB)" >&2
  [ -x $venv/bin/python ] || "${GDNBENCH_PYTHON:-python3}" -m venv $venv
  # Without --no-compile pip compiles 15,000 files of which a tenth is imported: half a minute on one core.
  install() { $venv/bin/python -m pip install -q --no-compile "$@"; }
  # The pip of Python 3.11 takes twice the processor time to read the index.
  install pip==26.3
  # torch by its exact version: a range would take the newest build, with gigabytes of CUDA libraries.
  torch=()
  $venv/bin/python -c 'import torch' 2>/dev/null || torch=("${GDNBENCH_TORCH:-torch==2.13.0}")
  # The versions of scripts/lock, on the Python that they are of. As they are complete, no package asks for others, and
  # two halves are installed at the same time.
  constraints=()
  python=$($venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if grep -q "^# Python $python\." requirements-dev.txt; then
    constraints=(-c requirements-dev.txt)
    install --no-deps -r <(awk 'NR % 2' requirements-dev.txt) &
    install --no-deps "${torch[@]}" -r <(awk '!(NR % 2)' requirements-dev.txt)
    wait $!
  elif [ ${#torch[@]} -gt 0 ]; then
    install "${torch[@]}"
  fi
  install "${constraints[@]}" -e '.[dev]'
  touch "$stamp"
fi
export PATH="$PWD/$venv/bin:$PATH"
# Where this is set, as in many containers, every process would compile the sources again.
unset PYTHONDONTWRITEBYTECODE
