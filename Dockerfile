# An image with everything but the weights of large models, for machines with and without a GPU:
#
#     docker build -t vlmrm-gym .
#     docker run --rm --init --gpus all -v vlmrm-gym-cache:/home/ubuntu/.cache vlmrm-gym
#
# "base", not "runtime": PyTorch's wheels bring CUDA themselves, in the version named here (see constraints.txt).
# Without a GPU, --build-arg BASE=ubuntu:24.04 does as well.
ARG BASE=nvidia/cuda:13.2.1-base-ubuntu24.04
FROM ${BASE}

# What MuJoCo draws with: the EGL loader, libOpenGL (PyOpenGL looks it up), and Mesa for machines without a GPU. On
# others the container toolkit mounts the driver's EGL, if asked for "graphics", but not always the vendor file that
# tells the loader of it. Where the driver is missing, the loader goes on to Mesa. Certificates are for downloads.
# torch.compile needs a compiler and Python's headers: Triton compiles the launchers of its kernels. KubeRay asks for
# the health of a node with wget.
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates python3-venv libegl1 libopengl0 libgl1-mesa-dri g++ python3-dev wget \
    && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /usr/share/glvnd/egl_vendor.d \
    && echo '{"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}}' \
        > /usr/share/glvnd/egl_vendor.d/10_nvidia.json
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics \
    MUJOCO_GL=egl \
    PYTHONUNBUFFERED=1 \
    PATH=/opt/venv/bin:$PATH

# Gigabytes, so this layer depends on no more than what names the dependencies, and the version. The package is
# installed in place: its sources, copied afterwards, need no second installation. Ray's "default" extra has the
# dashboard, which RayJobs are submitted to; trainings on one machine do without it.
WORKDIR /app
COPY pyproject.toml constraints.txt LICENSE ./
COPY vlmrm_gym/__init__.py vlmrm_gym/
COPY vlmrm_gym/_util/__init__.py vlmrm_gym/_util/
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/venv \
    && touch README.md \
    && pip install --upgrade pip \
    && pip install -c constraints.txt -e ".[ray,train]" "ray[default]"
# Shells that start as a login, which some operators use, forget PATH.
RUN echo 'PATH=/opt/venv/bin:$PATH' > /etc/profile.d/venv.sh
COPY . .

# Ubuntu's own user, by number, as Kubernetes' runAsNonRoot wants it. It may write results to /app; weights that are
# downloaded stay in the volume, since Hugging Face's cache and open_clip's are both under ~/.cache.
RUN install -d -o ubuntu -g ubuntu /app /home/ubuntu/.cache
USER 1000:1000
ENV HOME=/home/ubuntu
VOLUME /home/ubuntu/.cache

CMD ["python", "benchmarks/fps.py"]
