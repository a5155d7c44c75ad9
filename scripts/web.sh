#!/usr/bin/env bash
# Builds the page into web/dist: `web.sh build [--optional]`, or checks, tests and builds it: `web.sh check`.
# With --optional a machine without Node gets one line instead of an error.
set -euo pipefail
cd "$(dirname "$0")/../web"
command=${1:?build or check}
option=${2:-}

give_up() {
  if [[ $option == --optional ]]; then
    echo "planaria: the page is not built: $1; the terminal shows everything too"
    exit 0
  fi
  echo "planaria: the page is not built: $1" >&2
  exit 1
}

without_node() {
  give_up "it needs Node 20.19 or newer ($1), e.g. from https://nodejs.org/en/download"
}

require_node() {
  command -v node >/dev/null || without_node "node is missing"
  command -v npm >/dev/null || without_node "npm is missing"
  node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' ||
    without_node "found $(node --version)"
}

# npm ci empties node_modules, so it runs only after the lock file changed.
install_packages() {
  local stamp=node_modules/.installed
  if [[ ! -e $stamp || package-lock.json -nt $stamp ]]; then
    npm ci --no-audit --no-fund --loglevel=error && touch "$stamp"
  fi
}

is_fresh() {
  [[ -e dist/index.html ]] &&
    [[ -z $(find src ../services/coordinator/openapi.json index.html package-lock.json vite.config.ts -newer dist/index.html -print -quit) ]]
}

require_node
case $command in
  build)
    if is_fresh; then exit 0; fi
    install_packages || give_up "npm could not install its packages"
    npm run --silent build || give_up "npm run build failed"
    ;;
  check)
    install_packages
    npm run --silent check
    npm run --silent build
    ;;
  *)
    echo "web.sh: '$command' is neither build nor check" >&2
    exit 2
    ;;
esac
