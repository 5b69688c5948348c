"""``python -m fleet.chaos``."""

from fleet.chaos.command import main

main()
