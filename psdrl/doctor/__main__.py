"""`python -m psdrl.doctor`: the same as `psdrl doctor`."""

from psdrl.cli import main_doctor

if __name__ == "__main__":
    main_doctor()
