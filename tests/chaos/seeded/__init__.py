"""Seeded runs of a fleet under faults, checked by the observations of its clients and members."""
