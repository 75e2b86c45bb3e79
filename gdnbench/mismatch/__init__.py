"""`gdnbench capture --on-mismatch`: calls are recorded beside the store, judged there by another process
while the program runs, and kept if what they gave is not what the reference gives."""
