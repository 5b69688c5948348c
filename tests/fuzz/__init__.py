"""Fuzzing of the wire core; see `tests.fuzz.target`."""
