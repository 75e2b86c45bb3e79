"""`python -m gdnbench`: the same as the console script."""

from gdnbench.cli.main import console_main

if __name__ == "__main__":
    console_main()
