"""The IR compiled to LLVM for this CPU: the fast engine."""
