"""What users install with Planaria may be used as freely as Planaria."""

import re
from collections.abc import Iterator
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ALLOWED = frozenset(
    {
        "Apache-2.0",
        "MIT",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "0BSD",
        "ISC",
        "PSF-2.0",
        "MPL-2.0",  # used unmodified
        # Permissive licences of sources bundled in numpy, torch and regex.
        "BSL-1.0",
        "CC0-1.0",
        "CNRI-Python",
        "Zlib",
    }
)

OLD_NAMES = {
    "apache software license": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "bsd license": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "isc license": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
"""How distributions without an SPDX expression say it, in classifiers and free text."""


def _required_by(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": e}) for e in extras or {""}):
            yield canonicalize_name(requirement.name), frozenset(requirement.extras)


def _runtime_distributions() -> set[str]:
    """Everything that `pip install planaria[all]` installs on this machine."""
    pending = [("planaria", frozenset({"all"}))]
    seen = set(pending)
    while pending:
        for found in _required_by(*pending.pop()):
            if found not in seen:
                seen.add(found)
                pending.append(found)
    return {name for name, _ in seen if not name.startswith(("nvidia-", "cuda-", "triton"))}


def _licence(name: str) -> str:
    """Return the licence as an SPDX expression, or the words the distribution uses."""
    facts = metadata.metadata(name)
    if "License-Expression" in facts:
        return facts["License-Expression"]
    free_text = facts["License"].strip() if "License" in facts else "unknown"
    classifiers = [
        c.rpartition("::")[2].strip().lower()
        for c in facts.get_all("Classifier") or []
        if c.startswith("License ::")
    ]
    for words in [*classifiers, free_text.lower()]:
        if words in OLD_NAMES:
            return OLD_NAMES[words]
    return free_text


def _is_allowed(expression: str) -> bool:
    """Whether every part joined by AND has an allowed alternative."""
    plain = re.sub(r"\s+WITH\s+\S+", "", expression).replace("(", "").replace(")", "")
    return all(
        any(choice.strip() in ALLOWED for choice in part.split(" OR "))
        for part in plain.split(" AND ")
    )


def test_every_runtime_dependency_has_a_permissive_licence() -> None:
    """No dependency puts conditions on users that Planaria does not."""
    distributions = _runtime_distributions()
    assert {"planaria", "torch", "grpcio", "fastapi"} <= distributions
    refused = {n: _licence(n) for n in sorted(distributions) if not _is_allowed(_licence(n))}
    assert refused == {}


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND LGPL-2.1-only", False),
        ("Apache-2.0 WITH LLVM-exception AND MIT", True),
        ("unknown", False),
    ],
)
def test_expressions_are_read_as_spdx_means_them(expression: str, allowed: bool) -> None:
    """AND needs all of its parts, OR one of them."""
    assert _is_allowed(expression) is allowed
