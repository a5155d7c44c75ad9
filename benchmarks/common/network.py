"""Network namespaces on one machine: each node has an address of its own, and can be cut off.

A bridge joins them, with an address for whatever runs outside. Needs root and `ip` (iproute2).
"""

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

_MAX_NETWORKS = 16
"""Of one process; those of others have other addresses."""
_NETWORKS = itertools.cycle(range(_MAX_NETWORKS))

_ADDRESS = "02:00:00:00:00:01"

RESET = "meta l4proto tcp reject with tcp reset"
"""What nftables do to a packet: its sender learns that the connection is over."""


class NetworkError(Exception):
    """This machine does not allow it; says why."""


class Network:
    """A bridge and one namespace per node; removes them all when it is left."""

    def __init__(self, node_ids: Sequence[str]) -> None:
        number = next(_NETWORKS)
        self._tag = f"pl{os.getpid() % 1_000_000}n{number}"
        subnet = (os.getpid() * _MAX_NETWORKS + number) % 25_000
        self._subnet = f"10.{100 + subnet // 250}.{subnet % 250}"
        self._numbers = {node_id: index + 2 for index, node_id in enumerate(node_ids)}

    @property
    def host(self) -> str:
        """The address outside the namespaces."""
        return f"{self._subnet}.1"

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._numbers

    def address(self, node_id: str) -> str:
        return f"{self._subnet}.{self._numbers[node_id]}"

    def prefix(self, node_id: str) -> tuple[str, ...]:
        """What a command line begins with to run on a node; its process id is the command's."""
        return ("ip", "netns", "exec", self._namespace(node_id))

    def cut(self, node_id: str) -> None:
        """Let nothing through from or to a node; nobody is told."""
        _ip("link", "set", self._port(node_id), "nomaster")

    def heal(self, node_id: str) -> None:
        """Connect a node again."""
        _ip("link", "set", self._port(node_id), "master", self._tag)

    def filter(self, node_id: str, hook: str, rule: str) -> None:
        """Let packets of a node meet a rule of nftables, such as `ip saddr 10.0.0.7 drop`.

        Args:
            node_id: of the node.
            hook: `input` for what comes to it, `output` for what it sends.
            rule: what happens to them, in words of nft.

        Raises:
            NetworkError: nftables are not installed, or not permitted.
        """
        if shutil.which("nft") is None:
            raise NetworkError("there is no command nft (nftables)")
        chain = f"{{ type filter hook {hook} priority 0; }}"
        table = f"inet planaria_{hook}"
        for words in (
            f"add table {table}",
            f"add chain {table} {hook} {chain}",
            f"add rule {table} {hook} {rule}",
        ):
            _run(*self.prefix(node_id), "nft", words)

    def cut_from_peers(
        self,
        node_id: str,
        host: str,
        answer: str = "drop",
        hooks: Sequence[str] = ("input", "output"),
    ) -> None:
        """Let a node's packets pass only from and to one host, until `unfilter`.

        Args:
            node_id: of the node.
            host: the address that it still reaches: the coordinator's.
            answer: what becomes of all other packets, in words of nft.
            hooks: of which directions.
        """
        others = {"input": "iifname eth0 ip saddr", "output": "oifname eth0 ip daddr"}
        for hook in hooks:
            self.filter(node_id, hook, f"{others[hook]} != {host} {answer}")

    def unfilter(self, node_id: str) -> None:
        """Remove all rules of a node."""
        _run(*self.prefix(node_id), "nft", "flush ruleset")

    def __enter__(self) -> Self:
        """Make everything.

        Raises:
            NetworkError: it cannot be made here.
        """
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove()

    def _make(self) -> None:
        if shutil.which("ip") is None:
            raise NetworkError("there is no command ip (iproute2)")
        # By itself a bridge takes the address of a port, and another one when that is cut off.
        _ip("link", "add", self._tag, "address", _ADDRESS, "type", "bridge")
        _ip("address", "add", f"{self.host}/24", "dev", self._tag)
        _ip("link", "set", self._tag, "up")
        for node_id in self._numbers:
            namespace, port = self._namespace(node_id), self._port(node_id)
            _ip("netns", "add", namespace)
            _ip("link", "add", port, "type", "veth", "peer", "eth0", "netns", namespace)
            _ip("link", "set", port, "master", self._tag, "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "address", "add", f"{self.address(node_id)}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            _ip("netns", "exec", namespace, "true")

    def _remove(self) -> None:
        for node_id in self._numbers:
            with contextlib.suppress(NetworkError):
                _ip("link", "delete", self._port(node_id))  # a namespace may outlive its name
            with contextlib.suppress(NetworkError):
                _ip("netns", "delete", self._namespace(node_id))
        with contextlib.suppress(NetworkError):
            _ip("link", "delete", self._tag)

    def _namespace(self, node_id: str) -> str:
        return f"{self._tag}-{self._numbers[node_id]}"

    def _port(self, node_id: str) -> str:
        return f"{self._tag}p{self._numbers[node_id]}"


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
