# SPDX-License-Identifier: Apache-2.0
"""What SGLang 0.5.20 calls of sglang-kernel 0.4.7."""
