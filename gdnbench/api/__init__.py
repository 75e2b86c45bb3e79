# SPDX-License-Identifier: Apache-2.0
"""The functions and classes of `import gdnbench`, from which to import them; see docs/python.md."""
