# SPDX-License-Identifier: Apache-2.0
"""The kernels that are run under the checker: those of this project on the calls that prove them, and other
people's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.kernels import v4_plans
from tests.kernels.proving import CUT, GRIDS, SM90_PLANS, Grid
from tests.sim.kernel_checks import decode_plans
from tests.sim.kernel_checks.foreign import CALLS, Calls

PLANS = Path(decode_plans.__file__)
V4_PLANS = Path(v4_plans.__file__)


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel on the records of `grid`, or else other people's `calls`. `stages`: by the build that shows
    them. `package`: what it is of, if it is other people's, whose numbers are theirs to answer for."""

    grid: Grid | None = None
    kernel: str = ""
    stages: bool = False
    package: str = ""
    calls: Calls | None = None


def _subjects() -> dict[str, Subject]:
    prefill, decode, swa = (GRIDS[op] for op in ("gdn_prefill", "gdn_decode", "swa_decode"))
    kda, kda_prefill = (GRIDS[op] for op in ("kda_decode", "kda_prefill"))
    found = {
        # Stages come from the same launches.
        "gdn_prefill sm100": Subject(prefill, "sm100", stages=True),
        "gdn_prefill sm100_fused": Subject(prefill, "sm100_fused"),
        "gdn_prefill sm100_fused_cp": Subject(prefill, CUT),
        "gdn_prefill sm90_fused": Subject(prefill, "sm90_fused"),
        "gdn_prefill sm90_prepared": Subject(prefill, "sm90_prepared"),
        **{f"gdn_prefill {name.rpartition(':')[2]}": Subject(prefill, name) for name in SM90_PLANS},
        "gdn_decode cute": Subject(decode, "cute"),
        "gdn_decode cute, tapped": Subject(decode, "cute", stages=True),
        "kda_prefill sm100_fused": Subject(kda_prefill, "sm100_fused"),
        "kda_decode cute": Subject(kda, "cute"),
        "kda_decode cute, tapped": Subject(kda, "cute", stages=True),
    }
    for plan in ("registers", "bulk_in", "bulk"):
        found[f"gdn_decode cute, {plan}"] = Subject(decode, f"{PLANS}:{plan}")
        found[f"gdn_decode cute, {plan}, tapped"] = Subject(decode, f"{PLANS}:{plan}", stages=True)
        found[f"kda_decode cute, {plan}"] = Subject(kda, f"{PLANS}:kda_{plan}")
        found[f"kda_decode cute, {plan}, tapped"] = Subject(kda, f"{PLANS}:kda_{plan}", stages=True)
    found["gdn_decode cute, by steps"] = Subject(decode, f"{PLANS}:by_steps")
    for kernel in ("portable", "sm100", "wgmma"):
        found[f"swa_decode {kernel}"] = Subject(swa, kernel)
    v4 = GRIDS["v4_decode"]
    found["v4_decode portable"] = Subject(v4, "portable")
    for splits in ("unsplit", "in_2", "in_5"):
        found[f"v4_decode portable, {splits}"] = Subject(v4, f"{V4_PLANS}:{splits}")
    found["v4_decode sm100"] = Subject(v4, "sm100")
    found["v4_decode sm100, unsplit"] = Subject(v4, f"{V4_PLANS}:sm100_unsplit")
    found["v4_decode wgmma"] = Subject(v4, "wgmma")
    for plan in ("unsplit", "in_2"):
        found[f"v4_decode wgmma, {plan}"] = Subject(v4, f"{V4_PLANS}:wgmma_{plan}")
    found["flashinfer prefill"] = Subject(prefill, "flashinfer", package="flashinfer")
    found["flashinfer decode"] = Subject(decode, "flashinfer", package="flashinfer")
    found["fla prefill"] = Subject(prefill, "fla", package="fla")
    found["fla decode"] = Subject(decode, "fla", package="fla")
    for name in ("flashinfer", "flashinfer_cutedsl", "flashinfer_small_bh", "flashinfer_persistent"):
        found[f"{name} kda_prefill"] = Subject(kda_prefill, name, package="flashinfer")
    for name in ("flashinfer", "flashinfer_k3"):
        found[f"{name} kda_decode"] = Subject(kda, name, package="flashinfer")
    for name in ("fla", "fla_safe"):
        found[f"{name} kda_prefill"] = Subject(kda_prefill, name, package="fla")
    for name in ("fla", "fla_pool"):
        found[f"{name} kda_decode"] = Subject(kda, name, package="fla")
    for name in ("sglang", "sglang_cutedsl", "vllm"):
        package = name.partition("_")[0]
        found[f"{name} kda_prefill"] = Subject(kda_prefill, name, package=package)
        found[f"{name} kda_decode"] = Subject(kda, name, package=package)
    for name, calls in CALLS.items():
        found[name] = Subject(package=name.partition(" ")[0], calls=calls)
    return found


SUBJECTS = _subjects()
