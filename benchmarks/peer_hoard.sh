#!/bin/bash
# Hoard in somebody else's table: peer_hoard.sh install|prep|start|stop, and `down` to stop the node that `prep` starts.
# Reads SRC (default PEERS_DIR/ds, with small/ and shards/); `start` prints the directory that holds them, mounted.
# The two are a snapshot each, since what suits large files does not suit small ones.
set -euo pipefail
base=${PEERS_DIR:-/var/tmp/hoard-peers}
source_dir=${SRC:-$base/ds}
mount_dir=${MNT:-$base/mnt/hoard}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export HOARD_DATA_DIR=${HOARD_DATA_DIR:-$base/hoard}
export PYTHONPATH=$here
kinds=(small shards)

hoard() { "$here/.venv/bin/python" -m hoard_p2p.cli.main "$@"; }

node_up() {
  hoard peers >/dev/null 2>&1 && return
  hoard up --detach --listen 127.0.0.1:0 --cluster "rivals-$$" --discovery none >/dev/null
}

unmount_all() {
  for kind in "${kinds[@]}"; do
    if mountpoint -q "$mount_dir/$kind"; then hoard umount --force "$mount_dir/$kind"; fi
  done
}

evict_slabs() {
  "$here/.venv/bin/python" -c "
import sys; from pathlib import Path; from benchmarks.figures import drop_pages
drop_pages(Path(sys.argv[1]))" "$HOARD_DATA_DIR/slabs"
}

case "${1:-}" in
install)
  make -C "$here" --silent .venv/.ready-run >&2 ;;
prep)
  node_up
  known=$(hoard refs)
  for kind in "${kinds[@]}"; do
    grep -qw "rival-$kind" <<<"$known" || hoard publish "$source_dir/$kind" --replicas 1 --name "rival-$kind" >/dev/null
  done ;;
start)
  node_up
  unmount_all
  mkdir -p "$base/cache"
  for kind in "${kinds[@]}"; do mkdir -p "$mount_dir/$kind"; done
  evict_slabs
  date +%s.%N >"$base/cache/hoard.t0"  # the moment before the mount command
  hoard mount rival-small "$mount_dir/small" & small=$!
  hoard mount rival-shards "$mount_dir/shards"
  wait "$small"
  echo "$mount_dir" ;;
stop)
  unmount_all ;;
down)
  unmount_all
  hoard down ;;
*)
  echo "usage: $0 install|prep|start|stop|down" >&2
  exit 2 ;;
esac
