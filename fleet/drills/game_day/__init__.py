"""A game day on a fleet that runs: one fault, clients at work meanwhile, and what came of it."""
