"""What the simulator assumes about tcgen05 and the special functions, as micro-kernels that a Blackwell GPU
can confirm or refute."""
