# shellcheck shell=bash
# Read by .ci/container: what is checked, in the order in which it is.

# As somebody would who is not root and has cloned the repository. HOME: docker's, too.
as_caller() { setpriv --reuid "$owner" --regid "$owner" --clear-groups env HOME="$state/home" "$@"; }

# What is here, committed or not, as a checkout of the caller's. Machine settings go where a user would put them.
make_checkout() {
  local checkout=$state/checkout
  mkdir "$checkout"
  git -c safe.directory='*' ls-files -z --cached --others --exclude-standard |
    xargs -0 tar c --ignore-failed-read | tar x --no-same-owner -C "$checkout"
  # As if cloned with a strict umask: nobody but the owner may read it.
  chmod -R go= "$checkout"
  wheels_here=$state/wheels
  cp -al "$wheels" "$wheels_here" 2>/dev/null || cp -r "$wheels" "$wheels_here"
  chmod -R a+rX "$wheels_here"
  secret="# not for others: $RANDOM$RANDOM$RANDOM"
  printf '%s\n[global]\nno-index = true\nfind-links = /wheels\n' "$secret" >"$state/pip.conf"
  base_digest=$(docker image inspect --format '{{.Id}}' clickwork-base:plain)
  cat >"$checkout/.env" <<ENV
COMPOSE_FILE=docker-compose.yml:.ci/compose.yml
CLICKWORK_UID=$owner
CLICKWORK_GID=$owner
CPU_BASE_IMAGE=clickwork-base:plain
ROCM_BASE_IMAGE=clickwork-base:rocm
CLICKWORK_BASE_DIGEST=$base_digest
CLICKWORK_PIP_CONF=$state/pip.conf
CLICKWORK_WHEELS=$wheels_here
ENV
  chown -R "$owner:$owner" "$checkout" "$state/home"
  cd "$checkout"
  as_caller git init --quiet
  as_caller git add --all
  as_caller git -c user.name=ci -c user.email=ci@localhost commit --quiet --message checkout
  git_sha=$(as_caller git rev-parse HEAD)
}

check_compose_file() {
  local profile
  for profile in cpu cuda rocm; do
    COMPOSE_FILE='' docker compose --file docker-compose.yml --env-file .env.example --profile "$profile" config --quiet ||
      fail "compose, profile $profile"
  done
  [ "$(docker compose config --services | sort | xargs)" = "data_prep folders tensorboard train" ] ||
    fail "plain compose is not the CPU's"
  [ "$(USER=ann docker compose config | sed -n 's/^name: //p')" = clickwork-ann ] || fail "the project is not the user's"
}

# Name of the checkout's containers, volume and images: `make` has written it into .env.
project() { docker compose config | sed -n 's/^name: //p'; }

# check_image IMAGE BUILD_LOG: what an image says of itself, and how much it was built from.
check_image() {
  local image=$1 log=$2 label
  grep -h 'set-up: numpy' "$log" || fail "the build did not check where its packages come from"
  label() { docker image inspect --format "{{index .Config.Labels \"org.opencontainers.image.$1\"}}" "$image"; }
  [ "$(label revision)" = "$git_sha" ] || fail "$image: revision $(label revision), not $git_sha"
  [ "$(label base.digest)" = "$base_digest" ] || fail "$image: base digest $(label base.digest), not $base_digest"
  [ "$(docker image inspect --format '{{.Config.User}}' "$image")" = 1000:1000 ] || fail "$image starts as root"
  local context
  context=$(grep -oE 'transferring context: [0-9.]+[kM]?B' "$log" | cut -d' ' -f3 | sort -hr | head -n1)
  case $context in
    [0-9]*[0-9]B | [0-9]*kB | [0-3].*MB) ;;
    *) fail "build context of ${context:-unknown size}" ;;
  esac
  say "$image: $git_sha, context $context, $(docker image inspect --format '{{.Size}}' "$image") bytes"
}

# Runs a service to its end as the caller; fails unless it ends with this exit status. OPTIONS: for docker compose run;
# --no-deps spares it the services that have done their work once.
expect() {
  local wanted=$1 service=$2 status=0
  shift
  step "run-$service" as_caller timeout -k 10 300 docker compose run --rm -T ${OPTIONS---no-deps} "$@" \
    >"$state/shown.log" || status=$?
  [ "$status" = "$wanted" ] || {
    tail -n 40 "$state/run-$service.log"
    fail "docker compose run $*: exit status $status, not $wanted"
  }
}

field() { python3 -c 'import functools, json, sys
print(functools.reduce(lambda value, key: value[key], sys.argv[2:], json.load(open(sys.argv[1]))))' "$@"; }

check_up() {
  say "docker compose up"
  step up as_caller docker compose up --detach || fail "docker compose up"
  local status summary=runs/quickstart/summary.json manifest=runs/quickstart/manifest.json health=none
  status=$(timeout -k 5 300 docker compose wait train) || fail "docker compose wait: ${status:-no answer}"
  [ "$(field "$summary" status)" = completed ] || fail "the run is not complete"
  # Docker has made both folders as root; `folders` has handed them over.
  [ -z "$(find data runs ! -user "$owner" -o ! -group "$owner")" ] || fail "files in data/ or runs/ of somebody else"
  [ "$(field "$manifest" code git_sha)" = "$git_sha" ] || fail "no git SHA in the manifest"
  [ "$(field "$manifest" base_image)" = "$base_digest" ] || fail "no base digest in the manifest"
  [ "$(field "$manifest" image)" = None ] || fail "an image in the manifest that nobody named"
  say "eval AUC $(field "$summary" eval auc), $(field "$summary" throughput samples_per_second) samples/s"
  for _ in $(seq 60); do
    health=$(docker inspect --format '{{.State.Health.Status}}' "$(docker compose ps --quiet tensorboard)")
    [ "$health" != healthy ] || break
    sleep 1
  done
  [ "$health" = healthy ] || fail "TensorBoard is $health"
  say "make up PLATFORM=cpu"
  step make-up as_caller make up PLATFORM=cpu ARGS='run.name=up train.max_steps=20' || fail "make up"
  [ "$(field runs/up/manifest.json image)" = "$(docker image inspect --format '{{.Id}}' "$cpu_image")" ] ||
    fail "no image, or another one, in the manifest"
  grep -h '^TensorBoard: http://127.0.0.1:60' "$state/make-up.log" || fail "nobody said where TensorBoard is"
}

check_one_off() {
  say "once: evaluate, doctor, recommend, plan, verify, report, export, baselines"
  expect 0 evaluate run=runs/quickstart
  expect 0 clickwork doctor
  expect 0 clickwork plan topology.nodes=2
  python3 - >data/candidates.json <<'PYTHON'
import json

user = {f"int_{column}": 1 for column in range(13)}
candidates = [{"id": name, **{f"cat_{column}": name for column in range(26)}} for name in ("0a", "0b")]
print(json.dumps({"user": user, "candidates": candidates}))
PYTHON
  expect 0 clickwork recommend run=runs/quickstart candidates=data/candidates.json
  expect 0 clickwork report 'runs=[runs/quickstart]'
  expect 0 clickwork export run=runs/up out=runs/up/served
  expect 0 clickwork baselines run=runs/up
  ! grep 'pip install' "$state/run-clickwork.log" || fail "a package is missing in the image"
  say "verify: in a container, and on the host"
  expect 0 clickwork verify run=runs/up # by make up; the other one by docker compose up
  if [ -x "$host_python" ]; then
    step verify "$host_python" -m app.verify run=runs/quickstart || { # as root, who may read this environment
      tail -n 40 "$state/verify.log"
      fail "verify on the host"
    }
    grep -h 'identical' "$state/verify.log" || fail "the host's replay is not identical"
  else
    say "SKIPPED: no environment here to verify the run with outside a container"
  fi
}

check_exit_statuses() {
  say "a wrong configuration"
  expect 2 train model.no_such_key=1
  NPROC=2 expect 2 train model.no_such_key=1
  say "a path of the host"
  expect 2 data_prep data.raw=/srv/rows.tsv data.path=data/rows
  grep -h "this container sees those in its data and runs folders alone" "$state/run-data_prep.log" || fail "without the sentence"
}

check_stops() {
  local processes container status steps
  for processes in 1 2; do
    say "docker stop half-way, $processes process(es)"
    local run=runs/cut$processes cut=(run.name="cut$processes" checkpoint.every_steps=50)
    container=$(NPROC=$processes as_caller docker compose run --detach --no-deps train "${cut[@]}" \
      train.max_steps=1000000 2>"$state/cut.log")
    for _ in $(seq 600); do
      ! ls -d "$run"/checkpoints/step_* >/dev/null 2>&1 || break
      sleep 0.2
    done
    docker stop --time 120 "$container" >/dev/null
    status=$(docker inspect --format '{{.State.ExitCode}}' "$container")
    [ "$status" = 75 ] || { docker logs "$container" | tail; fail "exit status $status after docker stop, not 75"; }
    [ "$(field "$run/summary.json" status)" = interrupted ] || fail "not interrupted"
    steps=$(($(field "$run/summary.json" steps) + 20))
    NPROC=$processes expect 0 train "${cut[@]}" train.max_steps=$steps
    [ "$(field "$run/summary.json" steps)" = "$steps" ] || fail "it did not come to its end"
    grep -h 'resume: from' "$state/run-train.log"
  done
}

check_folders() {
  say "folders of somebody else"
  install -d -o 1 "$state/other"
  OPTIONS='' CLICKWORK_RUNS=$state/other expect 1 train
  expect_log folders CLICKWORK_UID=1
  install -d "$state/datasets" "$state/datasets/of_root"
  CLICKWORK_DATA=$state/datasets expect 2 folders
  grep -h 'CLICKWORK_DATA_MODE=ro' "$state/run-folders.log" || fail "nobody said how to read a dataset of somebody else"
  [ "$(stat -c %u "$state/datasets")" = 0 ] || fail "a folder with files in it was taken from its owner"
  say "a finished dataset of root's, mounted read-only"
  cp -r data/synthetic "$state/datasets/mine"
  chown -R 0:0 "$state/datasets"
  CLICKWORK_DATA=$state/datasets CLICKWORK_DATA_MODE=ro DATA_PREP_ARGS='data.source=synthetic data.path=data/mine' OPTIONS='' \
    expect 0 train run.name=read_only data.path=data/mine train.max_steps=20
  rm -r "$state/datasets"
}

expect_log() { docker compose logs "$1" 2>&1 | grep -h -m1 -- "$2" || fail "$1 did not say: $2"; }

# As another user, whose group may ask the engine too; only he may read his files.
as_bob() {
  setpriv --reuid "$bob" --regid "$owner" --clear-groups \
    env HOME="$state/bob" DOCKER_CONFIG="$state/bob/.docker" USER=bob "$@"
}

# Another user's clone, as README says; then one more of the same user's, by make. None touches another's training.
check_clones() {
  say "three clones train at once"
  local first second third name bob=4322
  second=$state/second third=$state/third
  cp -a "$state/home" "$state/bob"
  for name in second third; do
    install -d "$state/$name"
    tar c --exclude=./runs . | tar x -C "$state/$name"
    sed -i '/^CLICKWORK_PROJECT=/d' "$state/$name/.env"
    chown -R "$owner:$owner" "$state/$name"
  done
  sed -i "s/^CLICKWORK_UID=.*/CLICKWORK_UID=$bob/" "$second/.env"
  chown -R "$bob:$owner" "$second" "$state/bob"
  first=$(as_caller docker compose run --detach --no-deps train run.name=first train.max_steps=1000000 2>/dev/null)
  # It is there, and takes no time. A process that waits for a child that was frozen before it cannot be frozen: once more.
  docker pause "$first" >/dev/null || { sleep 5 && docker pause "$first" >/dev/null; }
  (cd "$second" && export keys='data.source=synthetic data.path=data/few data.synthetic.rows=2000' &&
    DATA_PREP_ARGS=$keys TRAIN_ARGS="$keys train.max_steps=20" step second as_bob docker compose up --detach) || fail "docker compose up in a second clone"
  (cd "$third" && step third as_caller make up PLATFORM=cpu ARGS=train.max_steps=20) || fail "make up in a third clone"
  [ "$(timeout -k 5 300 docker wait clickwork-bob-train-1)" = 0 ] || fail "the second clone's training failed"
  [ -z "$(find "$second/runs" ! -user "$bob")" ] || fail "files in the second user's runs/ of somebody else"
  [ "$(field "$third/runs/quickstart/summary.json" status)" = completed ] || fail "the third clone's run is not complete"
  [ "$({
    cd "$second" && USER=bob docker compose port tensorboard 6006
    cd "$third" && docker compose port tensorboard 6006
    cd "$state/checkout" && docker compose port tensorboard 6006
  } | sort -u | wc -l)" = 3 ] || fail "TensorBoards share a port"
  [ "$(docker image inspect --format '{{.Created}}' "$cpu_image")" = "$cpu_image_created" ] || fail "another clone's image replaced this one's"
  (cd "$second" && USER=bob docker compose down --volumes && cd "$third" && docker compose down --volumes) >"$state/down.log" 2>&1
  [ "$(docker inspect --format '{{.State.Running}}' "$first")" = true ] || fail "another clone ended the first one's training"
  say "make up beside a running training"
  ! step refused as_caller make up PLATFORM=cpu || fail "make up replaced a running training"
  grep -h '^error: a training of' "$state/refused.log" || fail "without the sentence"
  docker rm --force "$first" >/dev/null
}

# What a cluster without Docker gives: any user, no network, a read-only root; then without /tmp, and with a quota.
check_limits() {
  say "any user, no network, a read-only root, a quota"
  local status=0 run=(docker run --rm --read-only --network none --user 12345:12345 --volume "$PWD/data:/opt/clickwork/data:ro")
  install -d -m 777 "$state/anyone"
  step anyone "${run[@]}" --tmpfs /tmp --volume "$state/anyone:/opt/clickwork/runs" "$cpu_image" app.train data.path=data/synthetic \
    train.max_steps=20 || fail "training as any user in a read-only container"
  step no-tmp "${run[@]}" "$cpu_image" app.train data.path=data/synthetic >"$state/shown.log" || status=$?
  [ "$status" = 2 ] && grep -h 'add --tmpfs /tmp' "$state/no-tmp.log" || fail "status $status without a writable /tmp"
  step cpus docker run --rm --cpus 0.5 --entrypoint python "$cpu_image" \
    -c 'from common.machine import cpu_quota, usable_cpus; print(cpu_quota(), usable_cpus())'
  grep -hx '0.5 1' "$state/cpus.log" || fail "the quota is not seen"
  step quota docker run --rm --memory 3g "$cpu_image" app.doctor || true # memory: a warning
  grep -h '3.0 GiB (cgroup.s limit' "$state/quota.log" || fail "the memory limit is not seen"
  status=0
  step tiny docker run --rm --memory 300m "$cpu_image" app.train >"$state/shown.log" || status=$?
  [ "$status" = 2 ] && grep -h 'may use 300 MiB of memory' "$state/tiny.log" || fail "status $status in a tiny container"
}

check_edited_checkout() {
  say "a checkout that was edited after the build"
  as_caller sh -c 'echo >>app/train.py; echo "train: {no_such_key: 1}" >app/conf/recipe/edited.yaml'
  expect 2 train recipe=edited
  grep -h '^warning: this image holds other code' "$state/run-train.log" || fail "nobody said that the image is old"
  as_caller git checkout --quiet app/train.py
  rm app/conf/recipe/edited.yaml
  expect 0 train run.name=edited train.max_steps=0
  ! grep 'this image holds other code' "$state/run-train.log" || fail "an image of the checkout's own code is called old"
}

# Every file's content below the places where a base keeps its packages, and what pip says of them.
inside_hashes() {
  docker exec "$inside" sh -c 'python3 -m pip list --format freeze; find /opt /usr ! -type d ! -type l -print0 | sort -z |
    xargs -0 sha256sum'
}

check_rocm_builds() {
  say "a base shaped like rocm/primus"
  step standin as_caller docker build --file .ci/Dockerfile.standin --build-arg PLAIN_IMAGE=clickwork-base:plain \
    --build-arg DONOR_IMAGE="$cpu_image" --tag clickwork-base:rocm .ci || fail "no stand-in"
  say "make images PLATFORM=rocm"
  local part base_digest
  base_digest=$(docker image inspect --format '{{.Id}}' clickwork-base:rocm)
  CLICKWORK_BASE_DIGEST=$base_digest step build-rocm as_caller make images PLATFORM=rocm || fail "make images PLATFORM=rocm"
  check_image "${cpu_image%:*}:rocm" "$state/build-rocm.log"
  docker run --rm --entrypoint python "${cpu_image%:*}:rocm" -m pip list --format freeze >"$state/rocm.packages"
  for part in 'torch==.*[+]rocm7.1' 'torchrec==.*[+]standin' 'fbgemm_gpu-cpu==.*[+]standin' 'numpy==.*[+]standin'; do
    [ "$(grep -c "^$part" "$state/rocm.packages")" = 1 ] || fail "not $part"
  done

  say "ROCm's Dockerfile on a base without torch"
  ! step build-none as_caller docker build --file Dockerfile.rocm --build-arg BASE_IMAGE=clickwork-base:plain . >"$state/none.log" ||
    fail "it was built"
  grep -h 'set-up: error: no torch for rocm' "$state/build-none.log" | head -n 1 || fail "without the sentence"

  say "make train in a running container of that base, the repository mounted"
  local repository=$state/repository inside changed
  install -d -o "$owner" -g "$owner" "$repository"
  as_caller git clone --quiet . "$repository"
  inside=$(docker run --detach --user "$owner:$owner" --env HOME=/tmp --env USER=caller --env PIP_CONFIG_FILE=/pip.conf --volume "$state/pip.conf:/pip.conf:ro" \
    --volume "$wheels_here:/wheels:ro" --volume "$repository:/workspace/clickwork" --workdir /workspace/clickwork \
    clickwork-base:rocm sleep infinity)
  inside_hashes >"$state/before"
  step inside timeout -k 10 900 docker exec "$inside" make train ARGS='train.max_steps=20 baselines=false' || fail "make train inside the base"
  inside_hashes >"$state/after"
  [ -z "$(find "$repository" ! -user "$owner")" ] || fail "files in the checkout of somebody else"
  [ "$(field "$repository/runs/quickstart/manifest.json" code git_sha)" = "$git_sha" ] || fail "no commit in the manifest"
  grep -h 'set-up: using torch' "$state/inside.log"
  field "$repository/runs/quickstart/manifest.json" versions torch | grep -q '+rocm7.1$' || fail "another torch than the base's"
  grep -q '^torch==.*+rocm7.1$' "$state/before" || fail "pip in the base sees another torch"
  diff "$state/before" "$state/after" || fail "packages or files of the base were changed"
  changed=$(docker diff "$inside" | awk '{ print $2 }' | grep -E '^/(opt|usr)/' || true)
  [ -z "$changed" ] || fail "changed in the base: $changed"
  say "untouched: $(grep -c == "$state/before") packages, $(grep -c '  /' "$state/before") files by SHA-256"
}

# In no layer of any image, nor in what the builds keep for the next.
check_secrets() {
  local found
  found=$(grep --recursive --files-with-matches --fixed-strings "$secret" "$state/data" || true)
  [ -z "$found" ] || fail "the pip.conf is in $found"
}

check_rocm_runs() {
  say "the ROCm image, without a GPU"
  expect 2 train-rocm
  grep -h 'runtime.platform=rocm' "$state/run-train-rocm.log" || fail "nobody said that there is no GPU"
  expect 0 train-rocm runtime.platform=cpu run.name=rocm train.max_steps=20
  say "a missing GPU is noticed before anything is prepared"
  export DATA_PREP_ARGS='data.source=synthetic data.path=data/never'
  ! step no-gpu as_caller docker compose --profile rocm up || fail "it went on"
  grep -h 'sees no GPU' "$state/no-gpu.log" || fail "without the sentence"
  ! COMPOSE_FILE=docker-compose.yml step no-device as_caller docker compose --profile rocm up || fail "it went on without /dev/kfd"
  grep -h '/dev/kfd' "$state/no-device.log" || fail "the engine did not name the device"
  [ ! -e data/never ] || fail "data were prepared first"
  field runs/rocm/manifest.json versions torch | grep -q '+rocm7.1$' || fail "another torch than the base's"
}
