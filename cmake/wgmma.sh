#!/bin/sh
# Compiles a kernel of Hopper's products: cmake/wgmma.sh COMPILER ARGUMENT...
# Fails where the assembler says that it has made them wait for one another (C75xx): that is a remark
# to it, not a warning that could be made an error.
out=$("$@" 2>&1)
status=$?
[ -z "$out" ] || printf '%s\n' "$out" >&2
case $out in *'(C75'*) exit 1 ;; esac
exit $status
