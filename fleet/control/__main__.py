"""``python -m fleet.control``, which the supervisor starts."""

from fleet.control.process import main

if __name__ == "__main__":
    main()
