# Sourced by scripts/test and scripts/bench: other people's kernels, which run on the simulator, in a folder of
# their own; the file of requirements says why.
wanted=tests/sim/third_party/requirements.txt
export GDNBENCH_THIRD_PARTY=$PWD/.third-party
if [ ! "$GDNBENCH_THIRD_PARTY/.installed" -nt $wanted ]; then
  echo "installing the kernels of other packages into .third-party" >&2
  rm -rf "$GDNBENCH_THIRD_PARTY"
  python -m pip install -q --no-deps --target "$GDNBENCH_THIRD_PARTY" -r $wanted
  touch "$GDNBENCH_THIRD_PARTY/.installed"
fi
