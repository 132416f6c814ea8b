#!/bin/bash
# One task a machine runs app.launch (torchrun), which starts a process for each GPU:
#   sbatch --nodes=2 launch/slurm.sh recipe=mlperf_v2 run.name=mine
# In a container (launch/python_in_container.sh):
#   PYTHON=launch/python_in_container.sh IMAGE=clickwork:rocm sbatch --nodes=2 launch/slurm.sh recipe=mlperf_v2 …
# Ahead of the time limit Slurm sends USR1: the run saves, ends with 75, and the job is queued again.
#SBATCH --job-name=clickwork
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log

set -u
PYTHON=${PYTHON:-.venv/bin/python}
PROCESSES=${PROCESSES:-${SLURM_GPUS_ON_NODE:-1}}
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$((20000 + SLURM_JOB_ID % 10000))

told=
trap 'told=1; kill -USR1 ${!:-}' USR1 TERM
# srun hands USR1 to app.launch on every machine, and that to the processes. Where one is lost the others wait for it,
# but here none is started again: they are ended after the time that a checkpoint may take.
srun --kill-on-bad-exit=0 --wait="${WAIT:-300}" bash -c '
  exec "$0" -m app.launch --nnodes "$SLURM_NNODES" --nproc-per-node "$1" --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint "$2:$3" --rdzv-id "$SLURM_JOB_ID" \
    --rdzv-conf "is_host=$((SLURM_NODEID == 0))" -m app.train "${@:4}"
' "$PYTHON" "$PROCESSES" "$HEAD" "$PORT" "$@" &
srun_pid=$!
# A trap ends a wait above 128, with nothing of srun's.
while wait "$srun_pid"; status=$?; [ "$status" -gt 128 ] && [ -n "$told" ]; do told=; done
case $status in
  75 | 138) scontrol requeue "$SLURM_JOB_ID" ;;  # a checkpoint is there; USR1 before the first step
  137) [ "${SLURM_RESTART_COUNT:-0}" -ge 3 ] || scontrol requeue "$SLURM_JOB_ID" ;;  # killed; for lack of memory, always
esac
exit "$status"
