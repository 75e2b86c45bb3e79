# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts/test and scripts/bench: other people's kernels, which run on the simulator, in folders of
# their own; the files of requirements say why.
export GDNBENCH_THIRD_PARTY=$PWD/.third-party

install_third_party() {  # FOLDER REQUIREMENTS
  if [ ! "$1/.installed" -nt "$2" ]; then
    echo "installing the packages of $2 into $1" >&2
    rm -rf "$1"
    python -m pip install -q --no-compile --no-deps --target "$1" -r "$2"
    touch "$1/.installed"
  fi
}

install_third_party "$GDNBENCH_THIRD_PARTY" tests/sim/third_party/requirements.txt
install_third_party "$GDNBENCH_THIRD_PARTY/with-triton" tests/sim/third_party/requirements_triton.txt
# Of slow tests alone.
[ -z "${full:-}" ] || install_third_party "$GDNBENCH_THIRD_PARTY/with-cupy" tests/sim/third_party/requirements_cupy.txt
