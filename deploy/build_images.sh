#!/usr/bin/env bash
# Checks that both images can be built and start: with buildah, without a container engine, in a chroot.
#
# The base is a Debian made here by debootstrap, so that no image registry is needed. A host that reaches its package
# index through a CA or a pip.conf of its own lends both to the base: the Dockerfiles know nothing of it.
# Needs root, buildah and debootstrap. Takes minutes, and about 6 GB while it runs; leaves nothing behind, and of other
# images everything but the names that KEEP=1 gives.
#
#   deploy/build_images.sh [control] [worker]    which ones; both by default
#   KEEP=1                                       leave the images headrace-control and headrace-worker
#   TORCH_CPU_INDEX_URL=URL                      where torch's CPU build is, if not where the Dockerfile says;
#                                                empty: wherever pip looks
#   WHEELS=DIRECTORY                             packages that the host has as files, for pip to look at too
set -euo pipefail
cd "${BASH_SOURCE[0]%/*}/.."

skip() {
    echo "skipped: $1"
    exit 0
}
for tool in buildah debootstrap; do
    command -v "$tool" >/dev/null || skip "the images are built with buildah and debootstrap, and $tool is not installed."
done
[[ $EUID -eq 0 ]] || skip "buildah and debootstrap need root here."

readonly SUITE=bookworm BASE=localhost/headrace-base
readonly HOST_FILES=(/etc/ssl/certs/ca-certificates.crt /etc/pip.conf)
work=$(mktemp --directory)
# Names this run. What is built on the base inherits the label, images without a name included.
readonly RUN=${work##*/}
readonly LABEL=org.headrace.build=$RUN

clean_up() {
    if [[ -z ${KEEP:-} ]]; then
        buildah images --all --quiet --no-trunc --filter "label=$LABEL" | sort --unique \
            | xargs --no-run-if-empty buildah rmi --force >/dev/null 2>&1 || true
    fi
    buildah rm "$RUN" >/dev/null 2>&1 || true
    rm -rf --one-file-system "$work"
}

# say WHAT SECONDS DETAIL...
say() { printf '%-22s %4ss  %s\n' "$1" "$2" "${*:3}"; }

make_base() {
    local began=$SECONDS
    debootstrap --variant=minbase --include=ca-certificates "$SUITE" "$work/base" >"$work/debootstrap.log" 2>&1 \
        || { tail -n 20 "$work/debootstrap.log" >&2; exit 1; }
    for file in "${HOST_FILES[@]}"; do
        [[ ! -e $file ]] || install -D --mode=0644 "$file" "$work/base$file"
    done
    if [[ -n ${WHEELS:-} ]]; then
        mkdir -p "$work/base/var/lib" "$work/base/etc/xdg/pip"
        cp -RL "$WHEELS" "$work/base/var/lib/wheels"
        printf '[global]\nfind-links = /var/lib/wheels\n' >"$work/base/etc/xdg/pip/pip.conf"
    fi
    local container
    container=$(buildah from --name "$RUN" scratch)
    buildah config --label "$LABEL" "$container"
    buildah add --quiet "$container" "$work/base" / >/dev/null
    buildah commit --quiet --rm "$container" "$BASE" >/dev/null
    rm -rf --one-file-system "$work/base"
    say base "$((SECONDS - began))" "$SUITE"
}

# hint LOG: what may help where torch's own index cannot be reached
hint() {
    [[ -z ${TORCH_CPU_INDEX_URL+set} ]] && grep --quiet "No matching distribution found for torch" "$1" || return 0
    echo "torch's index cannot be reached: try TORCH_CPU_INDEX_URL= to take torch from wherever pip looks." >&2
}

# build NAME: the image headrace-NAME of docker/NAME.Dockerfile
build() {
    local began=$SECONDS image="localhost/headrace-$1" arguments=()
    [[ -z ${TORCH_CPU_INDEX_URL+set} ]] || arguments+=(--build-arg "TORCH_CPU_INDEX_URL=$TORCH_CPU_INDEX_URL")
    buildah bud --isolation=chroot --format=docker --build-arg "BASE=$BASE" "${arguments[@]}" \
        --file "docker/$1.Dockerfile" --tag "$image" . >"$work/$1.log" 2>&1 \
        || { tail -n 40 "$work/$1.log" >&2; hint "$work/$1.log"; exit 1; }
    say "built $1" "$((SECONDS - began))" \
        "$(buildah images --format '{{.Size}}' "$image")"
}

# in_image IMAGE COMMAND...: run it in a chroot, as the image's user, with the deployment's configuration in place
in_image() {
    local container code=0
    container=$(buildah from "localhost/headrace-$1")
    buildah copy --quiet "$container" deploy/configs/compose.yaml /etc/headrace/config.yaml >/dev/null
    buildah run --isolation=chroot "$container" -- "${@:2}" || code=$?
    buildah rm "$container" >/dev/null
    return "$code"
}

# start NAME: what was built starts, reads its configuration, and is who it should be
start() {
    local began=$SECONDS
    in_image "$1" headrace --help >/dev/null
    in_image "$1" headrace config check /etc/headrace/config.yaml >/dev/null
    in_image "$1" sh -c 'test "$(id -u)" -ne 0'
    say "started $1" "$((SECONDS - began))" "headrace --help, headrace config check, not root"
}

start_control() {
    start control
    in_image control python3 -c 'import importlib.util as u; assert not u.find_spec("torch"), "torch is in control"'
}

start_worker() {
    start worker
    in_image worker python3 -c 'import torch, ucxx; print("torch", torch.__version__, "ucxx", ucxx.__version__)'
    in_image worker python3 -c 'import headrace_kernels.native as n; print("kernels", n.instruction_set())
import importlib.util as u; assert u.find_spec("headrace_kernels._native"), "the native kernels were not built"'
}

trap clean_up EXIT
[[ $# -gt 0 ]] || set -- control worker
make_base
for name in "$@"; do
    build "$name"
    "start_$name"
done
