# SPDX-License-Identifier: Apache-2.0
"""The fast engine: compiles the IR with LLVM for this CPU."""
