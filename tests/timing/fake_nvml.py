# SPDX-License-Identifier: Apache-2.0
"""Stands in for nvidia-ml-py: answers as NVIDIA's documentation of NVML says."""

from __future__ import annotations

import os
from types import ModuleType, SimpleNamespace
from typing import Any

OURS = os.getpid()


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({3: "Not Supported", 6: "Not Found", 9: "Driver Not Loaded"}[value])
        self.value = value


class FakeNvml(ModuleType):
    """NVML of one GPU, GPU-0. `fails` names functions that raise, with NVML's error number."""

    NVMLError = NVMLError
    NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND = 0, 3, 6
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.fails: dict[str, int] = {}
        self.opened = 0
        self.reasons = 0
        self.counters = {74: 100, 75: 0, 76: 0, 77: 0}
        self.pids = [OURS]
        self.utilisation: list[tuple[int, int, int]] = []  # time stamp, pid, SM percent
        self.sm = 1980

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("nvml") and name in self.fails:
            raise_it = NVMLError(self.fails[name])

            def failing(*_: Any) -> Any:
                raise raise_it

            return failing
        return found

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-0":
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceGetClockInfo(self, device: str, kind: int) -> int:
        return {self.NVML_CLOCK_SM: self.sm, self.NVML_CLOCK_MEM: 3201}[kind]

    def nvmlDeviceGetTemperature(self, device: str, sensor: int) -> int:
        return 41

    def nvmlDeviceGetPowerUsage(self, device: str) -> int:
        return 123_456

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: str) -> int:
        return self.reasons

    def nvmlDeviceGetFieldValues(self, device: str, fields: list[int]) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(
                fieldId=field,
                nvmlReturn=0 if field in self.counters else self.NVML_ERROR_NOT_SUPPORTED,
                value=SimpleNamespace(ullVal=self.counters.get(field, 2**63)),
            )
            for field in fields
        ]

    def nvmlDeviceGetComputeRunningProcesses(self, device: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetProcessUtilization(self, device: str, since: int) -> list[SimpleNamespace]:
        found = [
            SimpleNamespace(timeStamp=stamp, pid=pid, smUtil=percent)
            for stamp, pid, percent in self.utilisation
            if stamp > since
        ]
        if not found:
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        return found
