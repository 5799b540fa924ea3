"""`python -m psdrl.evaluate`: the same as `psdrl evaluate`."""

from psdrl.cli import main_evaluate

if __name__ == "__main__":
    main_evaluate()
