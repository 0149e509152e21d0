"""Write docs/performance.md and its pictures from results.

python -m benchmarks.page [FILE]

FILE is the results of `make bench`, by default build/bench/results.json.
"""

import json
import sys
from pathlib import Path

from benchmarks.page.document import IMAGES, PAGE, RESULTS, write

write(json.loads(Path(sys.argv[1] if sys.argv[1:] else RESULTS).read_text()), PAGE, IMAGES)
