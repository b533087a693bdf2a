#!/usr/bin/env bash
# Finds the crossover of the default pair, twice: the second run must leave the file as it is.
#   bench/run/calibrate.sh [FOLDER] [ARGS of calibrate...]
. "$(dirname "$0")/pair.sh"
FOLDER=${1:-bench/results/$(date -u +%F)-calibration}
shift || true
mkdir -p "$FOLDER"
pair
calibrate "$FOLDER/calibration.json" --in-flight-max 32 "$@" | tee "$FOLDER/found.txt"
calibrate "$FOLDER/calibration.json" --in-flight-max 32 "$@" | tee -a "$FOLDER/found.txt"
