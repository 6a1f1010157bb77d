"""The simulation from the command line: `python tests/simulation/run.py --seeds 2000 --jobs 2`."""

import sys

from sim_runner import main

if __name__ == "__main__":
    sys.exit(main())
