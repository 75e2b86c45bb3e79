"""Operations and their kernels: one folder per operation. Installed as `gdnbench_kernels`.

Importing this package needs neither CUDA, nor nvidia-cutlass-dsl, nor a GPU.
PYTEST_DONT_REWRITE: see gdnbench/__init__.py.
"""  # SPDX-License-Identifier: Apache-2.0
