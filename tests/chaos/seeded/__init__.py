"""Seeded runs of a fleet under faults, judged by what its clients and its members have seen."""
