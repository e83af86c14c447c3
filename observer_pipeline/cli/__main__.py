"""`python -m observer_pipeline.cli` is the command `observer`."""

from observer_pipeline.cli import main

main()
