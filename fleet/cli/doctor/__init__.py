"""``fleet doctor``: what is wrong with a fleet as it is seen from where clients are, and how to fix it."""
