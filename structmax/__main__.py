"""`python -m structmax`, which torchrun can start too."""

from structmax.cli import main

if __name__ == "__main__":
    main()
