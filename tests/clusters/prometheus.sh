#!/usr/bin/env bash
# Debian's Prometheus, unpacked and not installed as a service. Needs apt-get with fresh lists.
#   prometheus.sh install PLACE      PLACE is a folder: pytest --prometheus_home=PLACE
set -euo pipefail

[[ $# == 2 && $1 == install ]] || { echo "usage: $0 install PLACE" >&2; exit 2; }
mkdir -p "$2"
cd "$2"
apt-get --quiet=2 download prometheus
dpkg --extract prometheus_*.deb .
rm prometheus_*.deb
