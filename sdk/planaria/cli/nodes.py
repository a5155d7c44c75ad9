"""`planaria nodes`: the machines of the cluster."""

from collections.abc import Callable

import typer
from rich.text import Text

from planaria._calls import Call, Calls
from planaria._connection import read
from planaria.cli import options
from planaria.cli.output import local_time, print_json, print_table, state_text
from planaria.client import Client
from planaria.models import Node

app = typer.Typer(help="The machines of the cluster.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _list_by_default(
    context: typer.Context, address: options.Address = None, as_json: options.AsJson = False
) -> None:
    if context.invoked_subcommand is None:
        list_nodes(address, as_json)
    else:
        options.hand_down(context, address, as_json=as_json)


@app.command("list")
def list_nodes(address: options.Address = None, as_json: options.AsJson = False) -> None:
    """List the nodes."""
    call = Calls.list_nodes()
    with Client(address) as client:
        body = client.fetch(call)
    if as_json:
        print_json(body)
        return
    print_table(
        ("NODE", "STATE", "ADDRESS", "ACCELERATORS", "ENGINES", "AGENT PID", "LAST HEARTBEAT"),
        (_row(node) for node in read(call, body)),
        empty="no nodes: start one with `planaria-worker --coordinator HOST:PORT`",
    )


def _row(node: Node) -> tuple[str | Text, ...]:
    engines = ", ".join(f"{engine.job_id} {engine.state} {engine.pid}" for engine in node.engines)
    return (
        node.id,
        state_text(node.state),
        node.address,
        f"{node.num_accelerators} {node.accelerator_kind}",
        engines or "-",
        str(node.agent_pid or "-"),
        local_time(node.heartbeat_time),
    )


def _change(
    call: Callable[[str], Call[Node]], node_id: str, address: str | None, as_json: bool
) -> None:
    with Client(address) as client:
        body = client.fetch(call(node_id))
    if as_json:
        print_json(body)
        return
    typer.echo(f"{node_id} {body['state']}")


@app.command("drain")
def drain(
    node_id: options.NodeId, address: options.Address = None, as_json: options.AsJson = False
) -> None:
    """Free a node of its work without losing a microbatch."""
    _change(Calls.drain_node, node_id, address, as_json)


@app.command("cordon")
def cordon(
    node_id: options.NodeId, address: options.Address = None, as_json: options.AsJson = False
) -> None:
    """Keep new work off a node."""
    _change(Calls.cordon_node, node_id, address, as_json)


@app.command("uncordon")
def uncordon(
    node_id: options.NodeId, address: options.Address = None, as_json: options.AsJson = False
) -> None:
    """End a cordon or a drain."""
    _change(Calls.uncordon_node, node_id, address, as_json)


@app.command("rm")
def remove(node_id: options.NodeId, address: options.Address = None) -> None:
    """Forget a node that is lost or drained."""
    with Client(address) as client:
        client.remove_node(node_id)
    typer.echo(f"{node_id} removed")
