"""`python -m psdrl.cost`: the same as `psdrl cost`."""

from psdrl.cli import main_cost

if __name__ == "__main__":
    main_cost()
