"""`fleet pipeline` for a Spark cluster: spark-submit --master … pipeline.py run --config … --out …

Executors also need the package: install it in their environment, or pass the project's wheel with --py-files.
"""

import sys

from fleet.cli import run

sys.exit(run(["pipeline", *sys.argv[1:]]))
