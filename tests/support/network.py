"""Network namespaces, which benchmarks use as well."""

from benchmarks.common.network import Network, NetworkError

__all__ = ["Network", "NetworkError"]
