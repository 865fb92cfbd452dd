"""Where the tests find the checkout, and the recorded data that lie beside it on some machines."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
CAPTURES = SHARED / "captures"
