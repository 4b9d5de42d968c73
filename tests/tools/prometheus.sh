#!/bin/sh
# Debian's prometheus and promtool, unpacked where tests find them. Nothing outside of that folder is touched: where the
# machine's own package lists do not know them, lists are read into a folder that goes again. Root is not needed.
#
#     sh tests/tools/prometheus.sh [FOLDER, .venv/tools/prometheus if it is left out]
set -eu

folder=${1:-.venv/tools/prometheus}

has_both() {
	for name in prometheus promtool; do PATH="$folder/usr/bin:$PATH" command -v "$name" >/dev/null || return 1; done
}

complain() {
	echo "make: cannot get Prometheus ($1): the tests that it takes part in will fail." >&2
	echo "make: install it (Debian: apt-get install prometheus), or try again: sh tests/tools/prometheus.sh" >&2
	exit 1
}

has_both && exit 0
command -v apt-get >/dev/null && command -v dpkg >/dev/null || complain "this is no Debian"
echo "make: unpacking Debian's prometheus into $folder"
mkdir -p "$(dirname "$folder")"
new=$(mktemp -d "$(dirname "$folder")/prometheus.XXXXXX")
trap 'rm -rf "$new"' EXIT
cd "$new"
mkdir -p root lists/partial cache/archives/partial

if ! apt-get download prometheus >log 2>&1; then
	own="-o Dir::State::lists=$PWD/lists -o Dir::Cache=$PWD/cache -o APT::Sandbox::User="
	# shellcheck disable=SC2086 # several words
	{ apt-get $own update && apt-get $own download prometheus; } >log 2>&1 || { cat log >&2; complain "apt-get"; }
fi
dpkg -x prometheus_*.deb root >log 2>&1 || { cat log >&2; complain "dpkg"; }
cd - >/dev/null
rm -rf "$folder"
mv "$new/root" "$folder"
has_both || complain "they do not run here"
