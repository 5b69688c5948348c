"""Clients under test, observers, and the audit of what they saw."""
