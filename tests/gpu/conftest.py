"""What these tests share with those that need no device."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "unit"))
