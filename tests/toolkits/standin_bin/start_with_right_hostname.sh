#!/usr/bin/env bash
# Stands for the script that AWS's Deep Learning Containers start with, as `bash -m start_with_right_hostname.sh train`:
# for training it builds and preloads a library that gives the host its name, and bash starts the toolkit as its child.
if [[ "$1" = "train" ]]; then
    LD_PRELOAD="" train
else
    "$@"
fi
