"""The checker: which accesses of a launch nothing orders, found in one run by happens-before."""
