"""Hostile bytes against every decoder. `python -m tests.fuzz TARGET` goes on looking; pytest replays what was found."""
