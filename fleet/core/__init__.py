"""Values, state and rules without I/O, which every other package shares."""
