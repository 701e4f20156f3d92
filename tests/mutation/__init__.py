"""Breaks one guard at a time, to show that a named test notices. `python -m tests.mutation` runs all."""
