"""Whether every state that a request reads is the state that it last wrote; see docs/lineage.md."""
