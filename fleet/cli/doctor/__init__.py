"""``fleet doctor``: collects facts about a fleet from where clients are, then evaluates them by rules."""
