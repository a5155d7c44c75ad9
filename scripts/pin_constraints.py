"""Write constraints.txt: the exact version of everything installed with this interpreter.

Run by `make constraints` after an upgrade. A local version (`2.13.0+cpu`) is left out, so that one
pin serves the CPU and the CUDA build; what only the latter needs (nvidia-*, triton) follows from
torch's own requirements.
"""

import re
import sys
from importlib import metadata
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "constraints.txt"
HEADER = (
    "# Written by `make constraints`: the versions `make install` takes and the tests ran with.\n"
)
NOT_PINNED = re.compile(r"planaria|pip|setuptools|wheel|nvidia-.*|cuda-.*|triton")


def pins() -> list[str]:
    """Return `name==version` for every installed distribution, sorted by name."""
    installed = {
        re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version.split("+")[0]
        for d in metadata.distributions()
    }
    return [f"{n}=={v}" for n, v in sorted(installed.items()) if not NOT_PINNED.fullmatch(n)]


def main() -> int:
    TARGET.write_text(HEADER + "\n".join(pins()) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
