#!/bin/bash
# Python in a container of IMAGE, for launch/slurm.sh: data/ and runs/ of the working directory, the machine's network,
# GPUs and InfiniBand or RoCE. Needs Docker 23 or Podman (ENGINE=podman) on every machine, and the image there.
#   PYTHON=launch/python_in_container.sh IMAGE=clickwork:rocm sbatch --nodes=2 launch/slurm.sh run.name=mine
set -eu

# Processes share memory by the host's /dev/shm, and NICs read memory that must not be moved: no limit on locking it, unless
# the machine has one: CLICKWORK_MEMLOCK=BYTES.
options=(--rm --network=host --ipc=host --ulimit "memlock=${CLICKWORK_MEMLOCK:--1}" --user "$(id -u):$(id -g)"
  --volume "$PWD/data:/opt/clickwork/data" --volume "$PWD/runs:/opt/clickwork/runs")
if [ -e /dev/infiniband ]; then
  options+=(--device /dev/infiniband --cap-add IPC_LOCK)
fi
if [ -e /dev/kfd ]; then
  options+=(--device /dev/kfd --device /dev/dri --security-opt seccomp=unconfined)
  for device in /dev/kfd /dev/dri/renderD*; do
    options+=(--group-add "$(stat -c %g "$device")")
  done
elif [ -e /dev/nvidiactl ]; then
  options+=(--gpus all)
fi
for name in $(compgen -e); do
  case $name in
    NCCL_* | RCCL_* | GLOO_* | HSA_* | GPU_* | IONIC_* | FBGEMM_* | TORCH_* | OMP_*) options+=(--env "$name") ;;
  esac
done
mkdir -p data runs
# The engine hands signals on: Slurm's USR1 reaches app.launch. The status is that of Python.
exec "${ENGINE:-docker}" run "${options[@]}" --entrypoint dumb-init "${IMAGE:?name the image: IMAGE=clickwork:rocm}" \
  --single-child -- python "$@"
