"""`python -m psdrl.train`: the same as `psdrl train`."""

from psdrl.cli import main_train

if __name__ == "__main__":
    main_train()
