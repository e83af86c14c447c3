"""`python -m observer_pipeline.cli`: the command `observer` without its console script."""

from observer_pipeline.cli import main

main()
