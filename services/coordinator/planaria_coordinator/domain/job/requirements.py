"""What a job asks for, as far as coordination needs it."""

from dataclasses import dataclass, field

from planaria_coordinator.domain.placement.plan import Stage
from planaria_coordinator.domain.placement.planner_query import LayerProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The fixed facts of a job, from its file."""

    job_spec: str
    """The job file as canonical JSON, for engines."""
    job_secret: str = field(repr=False)
    """Shared by the job's engines."""
    steps: int
    evaluates: bool = False
    """Whether the model is evaluated: then one more commit follows the last step."""
    num_microbatches: int
    microbatch_size: int
    fault_tolerance: int
    min_fault_tolerance: int | None = None
    """What a custom scheduler's plan must survive at least; None: no less than another plan."""
    unreachable_timeout_seconds: float = 1800.0
    """How long the job waits for the last holders of its state while they are only unreachable."""
    min_nodes: int
    max_nodes: int | None
    min_nodes_per_pipeline: int
    reproducible: bool
    data_path: str
    evaluation_data_path: str = ""
    """Of a text of its own to evaluate on; empty: there is none."""
    output_path: str
    """Where the trained model goes; empty for nowhere."""
    output_format: str
    ties_embeddings: bool
    """Whether the hosts of the head hold the embedding's state as well. Of a model by import path
    engines tell, with its layers."""
    init_from: str = ""
    """Where training begins; empty: from the seed."""
    checkpoint_path: str = ""
    """The folder of checkpoints; empty for none."""
    checkpoint_every_steps: int = 0
    checkpoint_deadline_seconds: float = 60.0
    """After how long without another layer a checkpoint is given up, in addition to the time for
    its bytes."""
    layers: tuple[LayerProfile, ...]
    """Estimated costs; measured ones take their place as engines report them. Empty until then for
    a model by import path: only who has built it knows its layers."""

    @property
    def least_fault_tolerance(self) -> int:
        """How many losses a custom scheduler's plan must survive at least, where any plan can."""
        least = self.min_fault_tolerance
        return self.fault_tolerance if least is None else min(least, self.fault_tolerance)

    @property
    def num_commits(self) -> int:
        """Commits of the whole job: the last one of a job that evaluates trains nothing."""
        return self.steps + self.evaluates

    @property
    def data_in_words(self) -> str:
        """Every path that must have the same contents on all nodes."""
        return " or ".join(path for path in (self.data_path, self.evaluation_data_path) if path)

    def trained_steps(self, version: int) -> int:
        """Return how many steps of training are in the parameters of a version."""
        return min(version, self.steps)

    @property
    def num_layers(self) -> int:
        """Layers that are placed: the embedding, the blocks and the head."""
        return len(self.layers)

    def layers_of(self, stage: Stage) -> tuple[int, ...]:
        """Return the layers whose state the host of a stage holds."""
        has_head = self.num_layers - 1 in stage.layers
        tied = (0,) if self.ties_embeddings and has_head and 0 not in stage.layers else ()
        return (*tied, *stage.layers)

    def nodes_to_start(self, nodes_per_replica: int) -> int:
        """Return the fewest nodes to start on: enough for the fault tolerance asked for."""
        return max(self.min_nodes, (self.fault_tolerance + 1) * nodes_per_replica)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What planning needs to know of a node."""

    node_id: str
    num_accelerators: int
    accelerator_kind: str
    accelerator_memory_bytes: int
