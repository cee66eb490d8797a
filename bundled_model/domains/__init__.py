"""The domains that the bundled model is trained on."""

from bundled_model.domains import cartpole, humanoid, mountain_car

DOMAINS = {domain.name: domain for domain in (cartpole.DOMAIN, mountain_car.DOMAIN, humanoid.DOMAIN)}
"""By name. Their order and names are those of the bundled `anchors.safetensors`."""
