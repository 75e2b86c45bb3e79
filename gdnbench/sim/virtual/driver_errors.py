# SPDX-License-Identifier: Apache-2.0
"""Results of the CUDA driver API: the numbers and names of its errors."""

from __future__ import annotations

# CUresult.
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, INVALID_DEVICE, NOT_FOUND = 0, 1, 2, 100, 101, 500
ERROR_NAMES = {
    SUCCESS: "CUDA_SUCCESS",
    INVALID_VALUE: "CUDA_ERROR_INVALID_VALUE",
    OUT_OF_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    4: "CUDA_ERROR_DEINITIALIZED",
    NO_DEVICE: "CUDA_ERROR_NO_DEVICE",
    INVALID_DEVICE: "CUDA_ERROR_INVALID_DEVICE",
    200: "CUDA_ERROR_INVALID_IMAGE",
    201: "CUDA_ERROR_INVALID_CONTEXT",
    209: "CUDA_ERROR_NO_BINARY_FOR_GPU",
    218: "CUDA_ERROR_INVALID_PTX",
    301: "CUDA_ERROR_FILE_NOT_FOUND",
    400: "CUDA_ERROR_INVALID_HANDLE",
    NOT_FOUND: "CUDA_ERROR_NOT_FOUND",
    600: "CUDA_ERROR_NOT_READY",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    702: "CUDA_ERROR_LAUNCH_TIMEOUT",
    710: "CUDA_ERROR_ASSERT",
    715: "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    716: "CUDA_ERROR_MISALIGNED_ADDRESS",
    719: "CUDA_ERROR_LAUNCH_FAILED",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    999: "CUDA_ERROR_UNKNOWN",
}


class DriverError(Exception):
    """A result that CUDA documents for a call, such as for a device that there is not: no refusal and no
    mistake that is worth a message. `code` is a CUresult."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(ERROR_NAMES[code])


def error_name(code: int) -> bytes:
    """cuGetErrorName."""
    if code not in ERROR_NAMES:
        raise DriverError(INVALID_VALUE)
    return ERROR_NAMES[code].encode()
