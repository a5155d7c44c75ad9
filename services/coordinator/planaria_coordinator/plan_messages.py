"""The model profile as a protobuf message: for planners and for custom schedulers."""

from planaria.api.common.v1 import profile_pb2
from planaria_coordinator.domain.placement.planner_query import LayerProfile, ModelProfile
from planaria_coordinator.messages import to_message


def profile_message(profile: ModelProfile) -> profile_pb2.ModelProfile:
    """Return a model's costs; they are those of one accelerator."""
    return profile_pb2.ModelProfile(
        microbatch_size=profile.microbatch_size,
        hardware=to_message(profile.hardware, profile_pb2.HardwareProfile),
        layers=[_layer_profile(layer) for layer in profile.layers],
    )


def _layer_profile(layer: LayerProfile) -> profile_pb2.LayerProfile:
    return profile_pb2.LayerProfile(
        name=layer.name,
        forward_seconds={1: layer.forward_seconds},
        backward_seconds={1: layer.backward_seconds},
        parameter_bytes=layer.parameter_bytes,
        state_bytes=layer.state_bytes,
        activation_bytes=layer.activation_bytes,
        output_bytes=layer.output_bytes,
    )
