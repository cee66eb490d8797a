"""The model of rewards that are learned from videos."""

from vlmrm_gym.rewards.current_head import check_head
from vlmrm_gym.rewards.demonstrations import Demonstrations
from vlmrm_gym.rewards.distance import DistanceNetwork, PlaceHead, StepHead, with_encoder_of
from vlmrm_gym.rewards.encoder import FrameEncoder


class DemonstrationsReward(FrameEncoder):
    """Scores the states of an episode, in order, by how far apart in time a network from videos sees them."""

    def __init__(self, fields: Demonstrations, device: str = "auto") -> None:
        network = DistanceNetwork.load(fields.head)
        super().__init__(with_encoder_of(fields.head, network, fields), device)
        network.cnn = None  # `model` has its own
        kind = StepHead if fields.measure == "step" else PlaceHead
        self.head = kind(network.to(self.model.device))
        self.feature_size = network.size
        check_head(self.head, self.fingerprint)
