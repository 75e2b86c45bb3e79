"""What the simulator assumes about tcgen05, as micro-kernels that a Blackwell GPU can confirm or refute."""
