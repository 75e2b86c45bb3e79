# SPDX-License-Identifier: Apache-2.0
"""The machines that a program can be shown: limits, names and figures that it may query."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.host.device import DEVICES, Device

DEFAULT = "b200"
MOST_SMS = 999_999  # of a machine that somebody describes


@dataclass(frozen=True, slots=True)
class Machine:
    """One GPU. `arch` is the target that kernels are compiled for, `device` its limits; `memory` in bytes, as
    in the product's data sheet."""

    name: str
    arch: str
    device: Device
    product: str  # as torch.cuda.get_device_name gives it
    memory: int


MACHINES = {
    "b200": Machine("b200", "sm_100a", DEVICES["sm_100a"], "NVIDIA B200", 192 * 10**9),
    "b300": Machine("b300", "sm_103a", DEVICES["sm_103a"], "NVIDIA B300 SXM6 AC", 288 * 10**9),
    "h200": Machine("h200", "sm_90a", replace(DEVICES["sm_90a"], name="H200"), "NVIDIA H200", 141 * 10**9),
    "h100": Machine("h100", "sm_90a", DEVICES["sm_90a"], "NVIDIA H100 80GB HBM3", 80 * 10**9),
}

# Compilation targets that may be given in place of a machine: the machine that each stands for.
TARGETS = {"sm_100a": "b200", "sm_103a": "b300", "sm_90a": "h200"}


def machine_named(name: str, sms: int | None = None) -> Machine:
    """The machine of that name or target, with `sms` multiprocessors in place of its own number. Raises
    LaunchError for an unknown name or a number outside 1 to MOST_SMS."""
    known = TARGETS.get(name, name)
    if known not in MACHINES:
        raise LaunchError(f"machine {name!r}; there are {', '.join((*MACHINES, *TARGETS))}")
    machine = MACHINES[known]
    if sms is None:
        return machine
    if not isinstance(sms, int) or isinstance(sms, bool) or not 1 <= sms <= MOST_SMS:
        raise LaunchError(f"{sms!r} multiprocessors: give 1 to {MOST_SMS}")
    return replace(machine, device=replace(machine.device, multiprocessors=sms))
