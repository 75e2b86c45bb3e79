"""The readable definition of every instruction: NumPy, 32 lanes wide."""
