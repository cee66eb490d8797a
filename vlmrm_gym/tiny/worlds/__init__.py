"""The worlds that the bundled model knows."""

from vlmrm_gym.tiny.worlds import cartpole, humanoid, mountain_car

WORLDS = {world.name: world for world in (cartpole.WORLD, mountain_car.WORLD, humanoid.WORLD)}
