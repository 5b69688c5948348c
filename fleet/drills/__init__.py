"""Local clusters and fleets, the demo and game days: everything that breaks a fleet on purpose."""
