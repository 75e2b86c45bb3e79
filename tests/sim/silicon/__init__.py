"""Micro-kernels in PTX that ran on a real sm_90 GPU, with what it answered; both engines replay them."""
