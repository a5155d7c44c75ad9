"""The digest of a job's parameters, which the coordinator makes of those of its layers."""

import hashlib
from collections.abc import Iterable


def final_digest(layer_digests: Iterable[bytes]) -> str:
    """SHA-256, in hex, over the layers' digests in layer order."""
    return hashlib.sha256(b"".join(layer_digests)).hexdigest()
