#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Replays captures on the CPU and the simulator and holds their errors against accepted ones.
#   scripts/ci_replay.sh [SUITE.toml | FOLDER] [options of `gdnbench suite`]
#   SUITE.toml  default: suites/captures.toml, the captures of this repository
#   FOLDER      of captures: its suite.toml, else all of them, beside its baselines.json
# Results (JUnit, JSON, Markdown, run stores) go to $GDNBENCH_RESULTS, by default build/replays of this checkout.
# Exit status: 0 pass, 1 a failure or an error worse than accepted, 2 bad input, 3 cannot run here.
from=$PWD
. "$(dirname "$0")/setup.sh"

suite=$PWD/suites/captures.toml
results=${GDNBENCH_RESULTS:-$PWD/build/replays}
cd "$from" # paths are those of the caller
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  suite=$1
  shift
fi

status=0
gdnbench suite "$suite" -o "$results" "$@" || status=$?
if [ -n "${GITHUB_STEP_SUMMARY:-}" ] && [ $status -ne 2 ] && [ -f "$results/summary.md" ]; then
  cat "$results/summary.md" >> "$GITHUB_STEP_SUMMARY"
fi
exit $status
