"""`python -m pulsify` is the command line."""

from pulsify.cli.main import main

if __name__ == "__main__":
    main()
