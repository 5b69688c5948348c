"""Hostile clients and brokers, and a running fleet in between."""
