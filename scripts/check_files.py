"""Check committed files: text ends with one line feed, nothing is larger than half a megabyte.

Nor is there anything that a merge or an editor left behind.

python scripts/check_files.py [FILE...]      every tracked file when none is named
"""

import subprocess
import sys
from pathlib import Path

LARGEST_BYTES = 512 * 1024
LEFT_BEHIND = frozenset({".bak", ".orig", ".rej", ".swp"})


def problem(path: Path) -> str | None:
    """Say what is wrong with a file, or None."""
    if path.suffix in LEFT_BEHIND:
        return "left behind by a merge or an editor"
    if path.stat().st_size > LARGEST_BYTES:
        return f"larger than {LARGEST_BYTES // 1024} kB"
    content = path.read_bytes()
    if not content or b"\0" in content:
        return None
    if not content.endswith(b"\n") or content.endswith(b"\n\n"):
        return "does not end with exactly one line feed"
    return None


def tracked() -> list[str]:
    """List every file that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.split("\0") if name]


def main() -> int:
    found = 0
    for name in sys.argv[1:] or tracked():
        path = Path(name)
        text = problem(path) if path.is_file() else None
        if text:
            print(f"{name}: {text}", file=sys.stderr)
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
