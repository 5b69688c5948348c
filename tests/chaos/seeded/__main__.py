"""``python -m tests.chaos.seeded``."""

from tests.chaos.seeded.command import main

main()
