# SPDX-License-Identifier: Apache-2.0
"""Whether every state that a request reads is the state that it last wrote; see docs/lineage.md."""
