"""`planaria nodes`: the machines of the cluster."""

from collections.abc import Callable

import typer
from rich.text import Text

from planaria._calls import Call, Calls
from planaria.cli.options import Address, AsJson, NodeId, list_by_default
from planaria.cli.output import local_time, print_table, show, show_state, state_text
from planaria.client import Client
from planaria.models import Node

app = typer.Typer(help="The machines of the cluster.", rich_markup_mode=None)


@app.command("list")
def list_nodes(address: Address = None, as_json: AsJson = False) -> None:
    """List the nodes."""
    show(Calls.list_nodes(), address, as_json, _print_nodes)


list_by_default(app, list_nodes)


def _print_nodes(nodes: tuple[Node, ...]) -> None:
    print_table(
        (
            "NODE",
            "STATE",
            "ADDRESS",
            "ACCELERATORS",
            "ENGINES",
            "AGENT PID",
            "LAST HEARTBEAT",
            "LABELS",
        ),
        map(_row, nodes),
        empty="no nodes: start one with `planaria-worker --coordinator HOST:PORT`",
    )


def _row(node: Node) -> tuple[str | Text, ...]:
    engines = ", ".join(f"{engine.job_id} {engine.state} {engine.pid}" for engine in node.engines)
    return (
        node.id,
        _state(node),
        node.address,
        f"{node.num_accelerators} {node.accelerator_kind}",
        engines or "-",
        str(node.agent_pid or "-"),
        local_time(node.heartbeat_time),
        ", ".join(f"{key}={value}" for key, value in sorted(node.labels.items())) or "-",
    )


def _state(node: Node) -> Text:
    if node.silent_since_time is None:
        return state_text(node.state)
    silent = f", silent since {local_time(node.silent_since_time)}"
    return Text.assemble(state_text(node.state), silent)


def _change(call: Callable[[str], Call[Node]]) -> Callable[..., None]:
    def change(node_id: NodeId, address: Address = None, as_json: AsJson = False) -> None:
        show_state(call(node_id), address, as_json, node_id)

    return change


app.command("drain", help="Free a node of its work without losing a microbatch.")(
    _change(Calls.drain_node)
)
app.command("cordon", help="Keep new work off a node.")(_change(Calls.cordon_node))
app.command("uncordon", help="End a cordon or a drain.")(_change(Calls.uncordon_node))
app.command(
    "evict",
    help="Declare a node lost at once: it is known to be gone for good, with what it holds.",
)(_change(Calls.evict_node))


@app.command("rm")
def remove(node_id: NodeId, address: Address = None) -> None:
    """Forget a node that is lost or drained."""
    with Client(address) as client:
        client.remove_node(node_id)
    typer.echo(f"{node_id} removed")
