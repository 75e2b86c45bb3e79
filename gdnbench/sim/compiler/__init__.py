"""The fast engine: compiles the IR with LLVM for this CPU."""
