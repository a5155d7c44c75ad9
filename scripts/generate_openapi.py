"""Write the coordinator's OpenAPI description to services/coordinator/openapi.json.

Run by `make openapi`. With --check nothing is written: the exit status says whether the committed
file is what the code says. The page's types and the reference of REST are made from it.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from planaria_coordinator.entrypoints.http.app import describe_api

TARGET = Path(__file__).resolve().parent.parent / "services/coordinator/openapi.json"


def render() -> str:
    """Return the description as the committed file has it."""
    return json.dumps(describe_api().openapi(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check_only = parser.parse_args(arguments).check
    if not check_only:
        TARGET.write_text(render(), encoding="utf-8")
        return 0
    if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != render():
        print(f"{TARGET.name} is stale: run `make openapi`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
