# shellcheck shell=bash
# Read by .ci/container: steps that are watched, the container engine, and what the builds need instead of a registry
# and a package index. All of it is kept in $cache, since it is the same the next time.

suite=trixie # its engine has BuildKit and compose v2; its binaries run on Debian 12 but for runc
declare -A running=()

say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }

fail() {
  say "FAILED: $*"
  exit 1
}

skip() {
  printf '\nSKIPPED: THE CONTAINERS WERE NOT TESTED: %s\n' "$*"
  exit 77
}

# start NAME COMMAND: in the background, its output and its exit status in files. bash forgets the status of a process
# that ended once another one gets its number, of which there may be 32,768 only. Functions of several steps are not to
# be started behind `||` or `if`, where bash would not stop at the first step that fails.
start() {
  local name=$1
  shift
  rm -f "$state/$name.status"
  (
    trap 'echo "$?" >"$state/$name.status"' EXIT
    trap 'exit 143' TERM
    "$@"
  ) >"$state/$name.log" 2>&1 &
  running[$name]=$!
}

# finish NAME: its exit status; its last lines if it failed. Under wait: a signal's trap waits for no child.
finish() {
  local status
  wait "${running[$1]}" 2>/dev/null || true
  status=$(cat "$state/$1.status" || echo 1)
  unset "running[$1]"
  [ "$status" = 0 ] || tail -n 40 "$state/$1.log"
  return "$status"
}

step() {
  start "$@"
  finish "$1"
}

clean_up() {
  local status=$?
  trap - EXIT INT TERM ERR
  for name in "${!running[@]}"; do
    kill "${running[$name]}" 2>/dev/null || true
  done
  if [ -n "$engine_pid" ]; then
    timeout -k 5 60 docker ps --quiet 2>/dev/null | xargs --no-run-if-empty docker kill >/dev/null 2>&1 || true
    kill "$engine_pid" 2>/dev/null || true
    for _ in $(seq 150); do
      kill -0 "$engine_pid" 2>/dev/null || break
      sleep 0.2
    done
    kill -9 "$engine_pid" 2>/dev/null || true
  fi
  rm -rf --one-file-system "$state"
  say "cleaned up, exit status $status"
  exit "$status"
}

# The first of the usual places with room for the images, on a file system that an engine can use.
find_room() {
  local place
  for place in "${TMPDIR:-/var/tmp}" /var/tmp /tmp; do
    case $(df --output=fstype "$place" 2>/dev/null | tail -n1) in overlay | tmpfs | nfs* | fuse* | '') continue ;; esac
    if [ "$(df --output=avail -BG "$place" | tail -n1 | tr -dc 0-9)" -ge "$gigabytes" ]; then
      echo "$place"
      return
    fi
  done
}

install_packages() {
  local tool missing=""
  for tool in runc iptables mmdebstrap ip; do
    command -v "$tool" >/dev/null || missing+=" $tool" # with several names it succeeds if any one is there
  done
  [ -n "$missing" ] || return 0
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
    runc iptables mmdebstrap iproute2 ca-certificates
}

unpack_engine() {
  [ ! -d "$cache/engine" ] || return 0
  local sources=$state/apt/engine.sources debs=$state/apt/debs
  mkdir -p "$state"/apt/lists/partial "$state"/apt/archives/partial "$debs"
  # The machine's own mirror, whatever it is, with another suite.
  awk 'BEGIN { RS = "" } NR == 1' /etc/apt/sources.list.d/debian.sources | sed -E "s/^Suites:.*/Suites: $suite/" >"$sources"
  local options=(-o Dir::Etc::sourcelist="$sources" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State::lists="$state/apt/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
  apt-get -qq "${options[@]}" update
  (cd "$debs" && apt-get -qq "${options[@]}" download docker.io docker-cli containerd docker-buildx docker-compose tini)
  rm -rf "$cache/engine.part"
  for deb in "$debs"/*.deb; do
    dpkg-deb -x "$deb" "$cache/engine.part"
  done
  ln -sfn tini-static "$cache/engine.part/usr/bin/docker-init"
  mv "$cache/engine.part" "$cache/engine"
}

make_base() {
  [ ! -e "$base" ] || return 0
  # A time of creation that is always the same: the same bytes from the same packages.
  SOURCE_DATE_EPOCH=1700000000 "${mmdebstrap[@]}" "$base.part"
  mv "$base.part" "$base"
}
mmdebstrap=(mmdebstrap --format=tar --variant=minbase --include=python3,python3-venv,python3-pip,make
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*'
  --dpkgopt='path-exclude=/usr/share/locale/*' bookworm)
base=$cache/base-$(sha256sum <<<"${mmdebstrap[*]}" | cut -c1-12).tar

# Everything that pip will want, by this machine's own pip settings: the builds know nothing of those.
download_wheels() {
  [ ! -d "$wheels" ] || return 0
  rm -rf "$wheels.part"
  local download=(python3 -m pip --disable-pip-version-check download --quiet --no-deps --dest "$wheels.part")
  "${download[@]}" --require-hashes -r requirements/train.lock -r requirements/installer.lock
  # The group onnx of the training image: of dev.lock the packages that train.lock lacks.
  "${download[@]}" -r <(grep -E '^(flatbuffers|ml-dtypes|onnx|onnx-ir|onnxruntime|onnxscript)==' requirements/dev.lock | tr -d '\\')
  # setuptools and wheel: a package that comes as source is built with them.
  "${download[@]}" -r requirements/torch.in wheel
  mv "$wheels.part" "$wheels"
}
wheels=$cache/wheels-$(cat requirements/*.lock requirements/torch.in .ci/engine.sh | sha256sum | cut -c1-12)

# In name spaces of its own: no mount, bridge or firewall rule of it is seen outside, or stays; and it has no network,
# so whatever an image asks of one fails; names too, at once instead of after the resolver's patience (--dns).
start_engine() {
  DOCKER_HOST=unix://$state/docker.sock
  cp -r "$cache/engine" "$state/engine"
  mkdir -p "$state/home/.docker"
  ln -s "$state/engine/usr/libexec/docker/cli-plugins" "$state/home/.docker/cli-plugins"
  export DOCKER_HOST DOCKER_CONFIG=$state/home/.docker PATH=$state/engine/usr/bin:$state/engine/usr/sbin:$PATH
  setsid unshare --mount --net sh -c 'ip link set lo up; exec dockerd "$@"' sh --data-root "$state/data" \
    --exec-root "$state/exec" --pidfile "$state/docker.pid" --host "$DOCKER_HOST" --group "$owner" --dns 127.0.0.1 \
    >"$state/dockerd.log" 2>&1 &
  engine_pid=$!
  for _ in $(seq 150); do
    ! docker version >/dev/null 2>&1 || break
    kill -0 "$engine_pid" 2>/dev/null || break
    sleep 0.2
  done
  docker version >/dev/null 2>&1 || {
    tail -n 5 "$state/dockerd.log"
    skip "dockerd did not start"
  }
  local driver
  driver=$(docker info --format '{{.Driver}}')
  [ "$driver" = overlay2 ] || skip "the engine has no overlay2 here, but $driver"
  say "engine $(docker version --format '{{.Server.Version}}'), compose $(docker compose version --short)"
}
