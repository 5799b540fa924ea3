"""`python -m psdrl COMMAND`."""

from psdrl.cli import main

if __name__ == "__main__":
    main()
