"""The model and the head of rewards that are made of other rewards. Imports torch only where they are called."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmrm_gym._util.validation import as_array, as_float32, short_repr
from vlmrm_gym.rewards.combination import Combination, find_rewards, name_of, unique_names
from vlmrm_gym.rewards.heads import CombineViews, Reports, SequenceHead, advance, looks_back
from vlmrm_gym.rewards.model import Features, RewardModel, Rewards, only_feature
from vlmrm_gym.rewards.own import as_model
from vlmrm_gym.rewards.spec import RewardSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Member:
    """One of the rewards of an expression: where its features are, and its head."""

    name: str = ""
    encoder: int = 0
    """The number of its encoder."""
    head: Any
    """None: it is yet to be learned."""
    multi_view: bool
    """Whether the head sees all views at once."""
    fingerprint: str = ""
    combine: CombineViews | None = None
    """Makes one reward of those of the views, each of which the head scores for itself; None: the head sees all."""

    @classmethod
    def of(cls, model: RewardModel, name: str = "", encoder: int = 0) -> "Member":
        """Describe the reward of a model."""
        multi_view = model.multi_view or model.encodes != "view"
        return cls(name=name, encoder=encoder, head=model.head, multi_view=multi_view, fingerprint=model.fingerprint)

    @property
    def sees_first(self) -> bool:
        """See `SequenceHead`."""
        return isinstance(self.head, SequenceHead) and self.head.sees_first

    def begin(self, first: "torch.Tensor") -> Any:
        """See `SequenceHead`; with `combine` each view has its own carry."""
        return self.head.begin(first) if self.combine is None else [self.head.begin(view) for view in first.split(1, 1)]

    def advance(self, features: "torch.Tensor", carry: Any) -> "tuple[torch.Tensor, Any]":
        """See `SequenceHead`."""
        if self.combine is None:
            return advance(self.head, features, carry)
        import torch

        views = features.split(1, dim=1)
        carries = [None] * len(views) if carry is None else carry
        scored = [advance(self.head, view, last) for view, last in zip(views, carries, strict=True)]
        combined = self.combine(torch.stack([rewards for rewards, _ in scored], dim=1).cpu().numpy())
        return torch.from_numpy(combined), [after for _, after in scored]


class CombinedModel(RewardModel):
    """The models of a combination's rewards, one for equal encoders. `head` is of one view, `expression` of any."""

    def __init__(self, spec: Combination, device: str = "auto") -> None:
        rewards: list[RewardSpec] = []
        for reward in find_rewards(spec):
            if _find(rewards, reward) is None:
                rewards.append(reward)
        names = unique_names([name_of(reward) for reward in rewards])
        if len(learned := [name for name, reward in zip(names, rewards, strict=True) if reward.learns]) > 1:
            raise ValueError(f"`reward` must have at most one part that is yet to be learned. Received {learned}.")
        self.encoders: list[RewardModel] = []
        """One model of each encoder."""
        keys: list[object] = []
        members: list[Member] = []
        models = [as_model(reward.build(device), name) for name, reward in zip(names, rewards, strict=True)]
        for name, model in zip(names, models, strict=True):
            key = object() if model.encoder_key is None else (model.encoder_key, model.clip_shape)
            if key not in keys:
                keys.append(key)
                self.encoders.append(model)
            members.append(Member.of(model, name, keys.index(key)))
        nodes: list[Node] = []
        _add_nodes(spec, rewards, nodes)
        self.expression = Expression(members, nodes)
        """From features to rewards, not bound to a number of views."""
        self.batch_size = min(model.batch_size for model in self.encoders)
        self.microbatch_size = min(model.microbatch_size or model.batch_size for model in self.encoders)
        self.fingerprint = " + ".join(filter(None, (model.fingerprint for model in self.encoders)))
        self.weights = "; ".join(dict.fromkeys(model.weights for model in self.encoders))
        self.num_views = next((model.num_views for model in models if model.num_views is not None), None)
        self.interpolate = all(model.interpolate for model in self.encoders)
        if len(self.encoders) == 1:
            (model,) = self.encoders
            self.render_size, self.encodes, self.ordered = model.render_size, model.encodes, model.ordered
            self.clip_length, self.clip_stride, self.clip = model.clip_length, model.clip_stride, model.clip
            self.every, self.feature_size, self.encoder_key = model.every, model.feature_size, model.encoder_key

    def encode(self, frames: Any) -> Any:
        """Encode frames of one view by all encoders: their features, float32 (B, D), one after the other."""
        encoded = [model.encode(frames) for model in self.encoders]
        if len(encoded) == 1:
            return encoded[0]
        import torch

        return torch.cat([torch.as_tensor(as_float32(as_array(features))) for features in encoded], dim=1)

    @property
    def head(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """From the features of states from one view, in order, to rewards."""
        return self.expression.bind([(1, size_of(model)) for model in self.encoders], None)

    def close(self) -> None:
        """See `RewardModel`."""
        for model in self.encoders:
            model.close()


def size_of(model: RewardModel) -> int | None:
    """Width of a model's features, D; None if it does not say."""
    return 1 if model.feature_size is None and model.head is only_feature else model.feature_size


def _find(rewards: Sequence[RewardSpec], reward: RewardSpec) -> int | None:
    """Find the number of a reward, or of an equal one; None if there is none."""
    for number, one in enumerate(rewards):
        with suppress(ValueError):  # they have arrays
            if one is reward or one == reward:
                return number
    return None


class Loaded(RewardSpec):
    """Stands for a part of a combination whose model has been loaded: workers do not send that back."""

    def __init__(self, part: RewardSpec) -> None:
        self.kind = name_of(part)


class Node(NamedTuple):
    """A combination in an expression."""

    combination: Combination
    """With a `Loaded` in the place of each part."""
    parts: Sequence[int]
    """Numbers of scores: first come those of all members, then those of all nodes."""


def _add_nodes(spec: RewardSpec, rewards: Sequence[RewardSpec], nodes: list[Node]) -> int:
    """Add the nodes of a reward, those of its parts first. Returns the number of its scores."""
    if not isinstance(spec, Combination):
        return _find(rewards, spec) or 0
    parts = [_add_nodes(part, rewards, nodes) for part in spec.parts]
    nodes.append(Node(spec.with_parts([Loaded(part) for part in spec.parts]), parts))
    return len(rewards) + len(nodes) - 1


@dataclass(frozen=True, eq=False)
class Expression(SequenceHead):
    """Makes rewards by the heads of models, and by nodes, of which the last one makes the rewards.

    `bind` makes it the head of states.
    """

    members: Sequence[Member]
    nodes: Sequence[Node] = ()
    """Empty for one reward alone."""
    shapes: Sequence[tuple[int, int | None]] = ()
    """(V, D) of each encoder's features; those of several encoders are (B, 1, sum of V * D)."""

    @property
    def looks_back(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `SequenceHead`."""
        return any(looks_back(one.head) for one in self.members) or any(
            one.combination.looks_back for one in self.nodes
        )

    @property
    def sees_first(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `SequenceHead`."""
        return any(one.sees_first for one in (*self.members, *(node.combination for node in self.nodes)))

    @property
    def learned(self) -> int | None:
        """The number of the member whose head is yet to be learned: then `with_head` makes the head of states."""
        return next((number for number, one in enumerate(self.members) if one.head is None), None)

    @property
    def fingerprint(self) -> str:
        """Of the features of the part that is learned, or of the only one."""
        number = self.learned if self.nodes else 0
        return "" if number is None else self.members[number].fingerprint

    def on_cpu(self, head_on_cpu: Any) -> "Expression":
        """Make the same with heads on the CPU."""
        return replace(self, members=[replace(one, head=head_on_cpu(one.head)) for one in self.members])

    def bind(self, shapes: Sequence[tuple[int, int | None]], combine: CombineViews | None) -> "Expression | None":
        """Make the head of states, None if there is none yet.

        For heads that score each view, `combine` makes one reward of those of views; None: by "min".
        """
        if len(shapes) > 1 and (unknown := [i for i, (_, size) in enumerate(shapes) if size is None]):
            name = next(one.name for one in self.members if one.encoder == unknown[0])
            raise ValueError(f"`feature_size` of the reward `{name}` must be set: it is combined with other models.")
        if not self.nodes and self.learned is not None:
            return None
        members = []
        for one in self.members:
            num_views = shapes[one.encoder][0]
            lowest = CombineViews("min", num_views) if num_views > 1 else None
            members.append(replace(one, combine=None if one.multi_view else combine or lowest))
        return replace(self, members=members, shapes=shapes)

    def with_head(self, head: Any) -> "Expression":
        """Make the same with another head in the place of the one that is learned, or of the first."""
        members = list(self.members)
        members[self.learned or 0] = replace(members[self.learned or 0], head=head)
        return replace(self, members=members)

    def learned_features(self, features: Features) -> Features:
        """Of the features of states, float32 (..., V, D), those of the part that is learned."""
        return self._select(features, self.members[self.learned or 0])

    def of_features(self, features: Features) -> Rewards | None:
        """Return the rewards of features that are rewards of views, without torch; None if a head makes them."""
        one = self.members[0]
        if self.nodes or one.head is not only_feature or features.shape[2] != 1:
            return None
        return only_feature(features) if one.combine is None else one.combine(features[..., 0])

    def _select(self, features: Any, member: Member) -> Any:
        """Of features (..., 1, sum of V * D), those of a member's encoder, (..., V, D)."""
        if len(self.shapes) == 1:
            return features
        sizes = [views * (size or 0) for views, size in self.shapes]
        start = sum(sizes[: member.encoder])
        own = features[..., 0, start : start + sizes[member.encoder]]
        return own.reshape(*own.shape[:-1], *self.shapes[member.encoder])

    def advance(self, features: "torch.Tensor", carry: Any) -> "tuple[torch.Tensor, Any]":
        """See `SequenceHead`."""
        return self.pay(features, carry)[:2]

    def pay(self, features: "torch.Tensor", carry: Any) -> "tuple[torch.Tensor, Any, Reports]":
        """Score the next T states of an episode by features (T, V, D): float32 (T,); carry; reports, of tensors."""
        carries = iter([None] * (len(self.members) + len(self.nodes)) if carry is None else carry)
        reports: dict[str, torch.Tensor] = {}
        scored = [self._score(one, features, next(carries)) for one in self.members]
        for node in self.nodes:
            scored.append(node.combination.advance([scored[i][0] for i in node.parts], next(carries), reports))
        return scored[-1][0], [after for _, after in scored], reports

    def _score(self, member: Member, features: "torch.Tensor", carry: Any) -> "tuple[torch.Tensor, Any]":
        scores, after = member.advance(self._select(features, member), carry)
        if not self.nodes:
            return scores, after
        if scores.shape != features.shape[:1] or not scores.isfinite().all():
            rule = f"the head of `{member.name}` must return a finite number for each state"
            raise ValueError(f"{rule}. It returned {short_repr(scores.tolist())}.")
        return scores.float(), after

    def begin(self, first: "torch.Tensor") -> Any:
        """See `SequenceHead`."""
        import torch

        scored: list[Any] = []
        for one in self.members:
            if one.sees_first:  # a reward is of what an action led to
                scored.append((torch.zeros(1), one.begin(self._select(first, one))))
            else:
                scored.append((self._score(one, first, None)[0], None))
        for node in self.nodes:
            scored.append(node.combination.begin([scored[i][0] for i in node.parts]))
        return [carry for _, carry in scored]


def is_missing(head: Any) -> bool:
    """Tell whether a head, or a part of it, is yet to be learned."""
    return head is None or (isinstance(head, Expression) and head.learned is not None)
