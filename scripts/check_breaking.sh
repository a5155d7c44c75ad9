#!/usr/bin/env bash
# Fails when the protocol of the working tree breaks clients of the last commit on main (JSON and wire).
# BREAKING_BASE names another commit to compare with.
set -euo pipefail
cd "$(dirname "$0")/.."

base=${BREAKING_BASE:-}
for candidate in origin/main main; do
  if [[ -z $base ]] && git rev-parse --verify --quiet "$candidate^{commit}" >/dev/null; then
    base=$candidate
  fi
done
if [[ -z $base ]] || [[ -z $(git ls-tree -r "$base" -- protos/buf.yaml) ]]; then
  echo "no commit to compare the protocol with: breaking changes are not checked"
  exit 0
fi
# An archive, because buf clones a repository whole, and a shallow clone of ours has no branch for it.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
git archive "$base" protos | tar -x -C "$scratch"
buf breaking protos --against "$scratch/protos"
