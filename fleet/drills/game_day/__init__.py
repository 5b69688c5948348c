"""A game day on a running fleet: one fault under load, and an audit of every record."""
