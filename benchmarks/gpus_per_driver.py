"""Estimate how many GPUs one driver can feed. `driver.py` prints the table with the measurements behind it.

    python benchmarks/gpus_per_driver.py --driver-cpu 10 --bytes-sent 220

The FLOPs of each image tower (counted by PyTorch) and the peak of an H100 SXM at an assumed utilisation give the
images/s of one GPU, and so the states/s that it consumes; no GPU is used. Each row is a possible bottleneck:

- driver: CPU time of the driver without environment steps, on one core.
- network: a link of 10 Gbit/s from the driver's machine.
- driver that also steps humanoids: on one core; measured by this script with `HumanoidVectorEnv`.
"""

import time

import tyro
from budget import count

H100_FLOPS = 989.4e12
"""Peak of an H100 SXM, dense bf16, without sparsity (NVIDIA's data sheet)."""
TOWERS = ("ViT-B-32", "ViT-L-14", "ViT-bigG-14")
LINK = 10e9 / 8
"""Bytes/s."""


def physics_cpu(num_envs: int = 16, steps: int = 100) -> float:
    """CPU seconds of the driver per million humanoid steps."""
    from vlmrm_gym.tasks.humanoid_vector import HumanoidVectorEnv

    envs = HumanoidVectorEnv(num_envs, task="stand")
    envs.action_space.seed(0)
    envs.reset(seed=0)
    actions = [envs.action_space.sample() for _ in range(steps)]
    envs.step(actions[0])
    start = time.process_time()
    for action in actions:
        envs.step(action)
    took = time.process_time() - start
    envs.close()
    return took / (num_envs * steps) * 1e6


def table(driver_cpu: dict[str, float], bytes_sent: float | None, utilization: float) -> str:
    """GPUs that one driver can feed, for each image tower and bottleneck.

    Args:
        driver_cpu: CPU seconds of the driver per million states, by backend; the last also steps humanoids.
        bytes_sent: Bytes on the wire per state, in the busier direction; None: not measured.
        utilization: Assumed fraction of the GPU's peak that the towers reach.
    """
    physics = physics_cpu()
    ceilings = {f"driver, {backend}": 1e6 / seconds for backend, seconds in driver_cpu.items()}
    if bytes_sent is not None:
        ceilings["network, 10 Gbit/s"] = LINK / bytes_sent
    last = list(driver_cpu)[-1]
    ceilings[f"driver that steps humanoids, too, {last}"] = 1e6 / (physics + driver_cpu[last])
    rates = {tower: H100_FLOPS * utilization / count(tower).image_flop for tower in TOWERS}
    rows = [
        f"GPUs that one driver can feed: H100 SXM, {utilization:.0%} of its {H100_FLOPS / 1e12:g} TFLOPS in bf16",
        f"  {'':<44}{'states/s':>12}" + "".join(f"{tower:>14}" for tower in TOWERS),
        f"  {'images/s of one GPU':<44}{'':>12}" + "".join(f"{rate:>14,.0f}" for rate in rates.values()),
    ]
    for name, ceiling in ceilings.items():
        gpus = "".join(f"{ceiling / rate:>14,.1f}" for rate in rates.values())
        rows.append(f"  {name:<44}{ceiling:>12,.0f}{gpus}")
    return "\n".join(rows)


def main(driver_cpu: float, bytes_sent: float | None = None, utilization: float = 0.4) -> None:
    """Print the table for measured figures.

    Args:
        driver_cpu: CPU seconds of the driver per million states.
        bytes_sent: Bytes on the wire per state.
        utilization: Assumed fraction of the GPU's peak that the towers reach.
    """
    print(table({"measured": driver_cpu}, bytes_sent, utilization))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
