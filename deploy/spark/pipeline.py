"""`fleet pipeline` for a Spark cluster: spark-submit --master … pipeline.py run --config … --out …

The executors need the package, too: in their environment, or with --py-files and the project's wheel.
"""

import sys

from fleet.cli import run

sys.exit(run(["pipeline", *sys.argv[1:]]))
