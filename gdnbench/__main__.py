"""`python -m gdnbench`: the same as the console script."""

from gdnbench.cli.main import run

if __name__ == "__main__":
    run()
