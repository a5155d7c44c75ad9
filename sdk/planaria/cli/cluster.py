"""`planaria up` and `planaria down`: a whole cluster on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from planaria.cli.output import console, print_table
from planaria.local import cluster as local_cluster
from planaria.local.startup import ClusterOptions
from planaria.local.state import default_data_dir, point_to
from planaria.local.supervisor import start_supervised


def register(app: typer.Typer) -> None:
    app.command("up", help="Start a whole cluster on this machine; what ends is started again.")(up)
    app.command("down", help="Stop what `up` started.")(down)


def up(
    nodes: Annotated[int, typer.Option(min=1, max=64, help="How many nodes.")] = 3,
    accelerators_per_node: Annotated[
        int, typer.Option(min=1, max=64, help="Accelerators of each node.")
    ] = 1,
    port: Annotated[int, typer.Option(min=0, max=65535, help="HTTP port; 0: any.")] = 8080,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where everything is kept. Default: ~/.local/share/planaria."),
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(help="postgresql://...; default: SQLite in the data directory.")
    ] = None,
) -> None:
    cluster = start_supervised(
        ClusterOptions(
            num_nodes=nodes,
            accelerators_per_node=accelerators_per_node,
            port=port,
            data_dir=(data_dir or default_data_dir()).resolve(),
            database_url=database_url,
        )
    )
    point_to(cluster)
    out = console()
    out.print(f"coordinator  {cluster.http_url}")
    out.print(f"gRPC         {cluster.grpc_address}")
    out.print(f"token file   {cluster.token_file}")
    out.print(f"logs         {Path(cluster.data_dir) / 'logs'}")
    agents = [record for record in cluster.processes if record.name.startswith("node-")]
    print_table(("NODE", "AGENT PID"), ([a.name, str(a.pid)] for a in agents), empty="no nodes")


def down(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Of the cluster to stop. Default: of the one started last, if it runs, "
            "else ~/.local/share/planaria."
        ),
    ] = None,
) -> None:
    cluster = local_cluster.find(data_dir.resolve() if data_dir else None)
    stopped = local_cluster.stop(cluster)
    typer.echo(f"stopped {stopped} processes of {cluster.http_url}")
